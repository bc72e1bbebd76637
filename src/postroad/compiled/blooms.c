/* ADD of core/tracking/blooms.py, which says what is computed here and why. Change both together, and the number in the name. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const uint64_t GAMMA = 0x9E3779B97F4A7C15u;

static inline uint64_t finish(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline void set(uint8_t *bits, uint32_t position)
{
    bits[position >> 3] |= (uint8_t)(1u << (position & 7));
}

/* bits: m of them; ids: 16 bytes each; masks: one for each id, or null. On a machine whose numbers are little-endian. */
void postroad_bloom_add_2(uint8_t *bits, const uint8_t *ids, const uint64_t *masks, size_t count, uint64_t m, uint32_t k,
                          uint64_t salt)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t words[2];
        memcpy(words, ids + 16 * i, 16);
        uint64_t mixed = finish(words[0] * GAMMA + words[1] + salt);
        if (masks)
            mixed = finish(mixed ^ (masks[i] + GAMMA));
        if (m == 1 << 16) {
            uint16_t a = (uint16_t)(mixed >> 48), b = (uint16_t)(mixed >> 32), c = (uint16_t)(mixed >> 16);
            for (uint32_t j = 0; j < k; j++, a += b, b += c)
                set(bits, a);
        } else {
            uint32_t a = (uint32_t)(mixed >> 32), b = (uint32_t)mixed, c = (uint32_t)(finish(mixed + GAMMA) >> 32);
            for (uint32_t j = 0; j < k; j++, a += b, b += c)
                set(bits, (uint32_t)(a * m >> 32));
        }
    }
}
