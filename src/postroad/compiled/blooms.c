/* ADD and EXTENTS of core/tracking/blooms.py, which says what is computed here and why. Change both together, and the number in
the name. For machines whose numbers are little-endian. */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static const uint64_t GAMMA = 0x9E3779B97F4A7C15u;
static const uint8_t BIT[8] = {1, 2, 4, 8, 16, 32, 64, 128};
static const size_t AHEAD = 16; /* ids that are fetched before they are needed */

struct part {
    uint8_t *bits;         /* m of them */
    const uint8_t *ids;    /* 16 bytes each */
    const uint32_t *rows;  /* which of the ids, or null for the first ones */
    const uint64_t *masks; /* one for each of these, or null */
    size_t count;          /* of these */
};

static inline uint64_t finish(uint64_t x)
{
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return x ^ x >> 31;
}

static inline const uint8_t *id(const uint8_t *ids, const uint32_t *rows, size_t i)
{
    return ids + 16 * (rows ? (size_t)rows[i] : i);
}

static inline uint64_t mix(const struct part *part, size_t i, uint64_t salt)
{
    uint64_t words[2];
    memcpy(words, id(part->ids, part->rows, i), 16);
    uint64_t mixed = finish(words[0] * GAMMA + words[1] + salt);
    return part->masks ? finish(mixed ^ (part->masks[i] + GAMMA)) : mixed;
}

static inline void set(uint8_t *bits, uint32_t position)
{
    bits[position >> 3] |= BIT[position & 7];
}

static inline void add_16(uint8_t *bits, uint64_t x, uint64_t y, uint32_t k)
{
    uint16_t a = (uint16_t)(x >> 48), b = (uint16_t)(x >> 32), c = (uint16_t)(x >> 16);
    uint16_t d = (uint16_t)(y >> 48), e = (uint16_t)(y >> 32), f = (uint16_t)(y >> 16);
    for (uint32_t j = 0; j < k; j++, a += b, b += c, d += e, e += f) {
        set(bits, a);
        set(bits, d);
    }
}

static inline void add_32(uint8_t *bits, uint64_t x, uint64_t y, uint64_t m, uint32_t k)
{
    uint32_t a = (uint32_t)(x >> 32), b = (uint32_t)x, c = (uint32_t)(finish(x + GAMMA) >> 32);
    uint32_t d = (uint32_t)(y >> 32), e = (uint32_t)y, f = (uint32_t)(finish(y + GAMMA) >> 32);
    for (uint32_t j = 0; j < k; j++, a += b, b += c, d += e, e += f) {
        set(bits, (uint32_t)(a * m >> 32));
        set(bits, (uint32_t)(d * m >> 32));
    }
}

/* Ids are added in pairs, whose steps do not wait for each other; the last of an odd number is paired with itself. */
static void add_part(const struct part part, uint64_t m, uint32_t k, uint64_t salt)
{
    for (size_t i = 0; i < part.count; i += 2) {
        if (i + AHEAD + 1 < part.count) {
            __builtin_prefetch(id(part.ids, part.rows, i + AHEAD));
            __builtin_prefetch(id(part.ids, part.rows, i + AHEAD + 1));
        }
        uint64_t x = mix(&part, i, salt), y = i + 1 < part.count ? mix(&part, i + 1, salt) : x;
        if (m == 1 << 16)
            add_16(part.bits, x, y, k);
        else
            add_32(part.bits, x, y, m, k);
    }
}

void postroad_bloom_add_4(const struct part *parts, size_t count, uint64_t m, uint32_t k, uint64_t salt)
{
    for (size_t i = 0; i < count; i++)
        add_part(parts[i], m, k, salt);
}

/* The lowest and the highest tick of each part of the rows; part i ends before stops[i], and none is empty. */
void postroad_extents_1(const uint8_t *ids, const uint32_t *rows, const size_t *stops, size_t count, uint64_t *lows, uint64_t *highs)
{
    size_t row = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t low = UINT64_MAX, high = 0;
        for (; row < stops[i]; row++) {
            uint64_t tick;
            memcpy(&tick, id(ids, rows, row) + 8, 8);
            tick = __builtin_bswap64(tick);
            low = tick < low ? tick : low;
            high = tick > high ? tick : high;
        }
        lows[i] = low;
        highs[i] = high;
    }
}
