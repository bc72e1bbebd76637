/* ADD, FIND and EXTENTS of tracking/histories/blooms.py, and PACK and LOOK UP of spark/jobs/matching.py, which say what is computed
here and why. Change both together, and the number in the name. For machines whose numbers are little-endian. */

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

/* --- FIND: which of many ids are in which blooms ------------------------------------------------------------------------- */

struct probe {
    uint64_t bits;          /* address of the bits, m of them */
    uint64_t found;         /* address of the byte of the first id in which a hit is noted */
    uint64_t first, after;  /* which of the ids are asked for */
    uint64_t m, k, salt;
    uint64_t sets;          /* how many masks are tried, from 0 on; 0 if there are none */
    uint64_t flag;          /* the bit of that byte */
};

static inline uint32_t has(const uint8_t *bits, uint32_t position)
{
    return bits[position >> 3] >> (position & 7) & 1;
}

/* Four bits are looked at before the first branch: half of the bits are set, so a branch at each would be guessed wrongly. */
static int holds_16(const uint8_t *bits, uint64_t x, uint64_t k)
{
    uint16_t a = (uint16_t)(x >> 48), b = (uint16_t)(x >> 32), c = (uint16_t)(x >> 16);
    uint64_t j = 0;
    for (; j + 4 <= k; j += 4) {
        uint32_t all = has(bits, a);
        a += b, b += c, all &= has(bits, a);
        a += b, b += c, all &= has(bits, a);
        a += b, b += c, all &= has(bits, a);
        a += b, b += c;
        if (!all)
            return 0;
    }
    for (; j < k; j++, a += b, b += c)
        if (!has(bits, a))
            return 0;
    return 1;
}

static int holds_32(const uint8_t *bits, uint64_t x, uint64_t m, uint64_t k)
{
    uint32_t a = (uint32_t)(x >> 32), b = (uint32_t)x, c = (uint32_t)(finish(x + GAMMA) >> 32);
    for (uint64_t j = 0; j < k; j++, a += b, b += c)
        if (!has(bits, (uint32_t)(a * m >> 32)))
            return 0;
    return 1;
}

static inline int holds(const struct probe *p, uint64_t mixed)
{
    const uint8_t *bits = (const uint8_t *)(uintptr_t)p->bits;
    return p->m == 1 << 16 ? holds_16(bits, mixed, p->k) : holds_32(bits, mixed, p->m, p->k);
}

/* ids: 16 bytes each; a hit of id i is noted in the byte found + i * stride. */
void postroad_bloom_find_1(const struct probe *probes, size_t count, const uint8_t *ids, size_t stride)
{
    for (size_t n = 0; n < count; n++) {
        const struct probe *p = probes + n;
        uint8_t *found = (uint8_t *)(uintptr_t)p->found;
        for (size_t i = p->first; i < p->after; i++) {
            uint64_t words[2];
            memcpy(words, ids + 16 * i, 16);
            uint64_t mixed = finish(words[0] * GAMMA + words[1] + p->salt);
            int hit = p->sets ? 0 : holds(p, mixed);
            for (uint64_t mask = 0; mask < p->sets && !hit; mask++)
                hit = holds(p, finish(mixed ^ (mask + GAMMA)));
            found[i * stride] |= (uint8_t)(hit ? p->flag : 0);
        }
    }
}

/* --- LOOK UP: which of many ids are among the entries of elements that keep ids as they are ------------------------------- */

struct lookup {
    uint64_t entries, count; /* address of 16 bytes each, and how many */
    uint64_t found, flag;    /* as above */
    uint64_t ordered;        /* whether the entries ascend by broker and tick */
};

struct key {
    uint64_t high;
    uint32_t low;
};

static inline struct key key_of(const uint8_t *ids, size_t i)
{
    struct key key;
    memcpy(&key.high, ids + 16 * i + 4, 8);
    memcpy(&key.low, ids + 16 * i + 12, 4);
    key.high = __builtin_bswap64(key.high), key.low = __builtin_bswap32(key.low);
    return key;
}

static inline int before(struct key a, struct key b)
{
    return a.high < b.high || (a.high == b.high && a.low < b.low);
}

/* The first of the ids from `start` on that is not before the key: strides that double, then halves. */
static size_t first_from(const uint8_t *ids, size_t start, size_t count, struct key key)
{
    size_t step = 1, low = start, high = start;
    while (high < count && before(key_of(ids, high), key)) {
        low = high + 1;
        high += step;
        step *= 2;
    }
    if (high > count)
        high = count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (before(key_of(ids, middle), key))
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The ids ascend by broker and tick. Different ids may have the same tick. */
void postroad_ids_find_1(const struct lookup *lookups, size_t count, const uint8_t *ids, size_t id_count, size_t stride)
{
    for (size_t n = 0; n < count; n++) {
        const struct lookup *l = lookups + n;
        const uint8_t *entries = (const uint8_t *)(uintptr_t)l->entries;
        uint8_t *found = (uint8_t *)(uintptr_t)l->found;
        size_t place = 0;
        for (size_t i = 0; i < l->count; i++) {
            struct key key = key_of(entries, i);
            place = first_from(ids, l->ordered ? place : 0, id_count, key);
            if (place == id_count) {
                if (l->ordered)
                    break;
                continue;
            }
            struct key next = key_of(ids, place);
            if (before(key, next)) {
                if (l->ordered)
                    i = first_from(entries, i, l->count, next) - 1;
                continue;
            }
            for (size_t j = place; j < id_count && !before(key, key_of(ids, j)); j++)
                if (!memcmp(ids + 16 * j, entries + 16 * i, 4))
                    found[j * stride] |= (uint8_t)l->flag;
        }
    }
}

/* PACK: ids from the columns of a track file, those of row i between offsets[i] and offsets[i + 1], all of the broker origins[i];
says of each row whether they ascend. */
void postroad_ids_pack_1(const int64_t *milliseconds, const int32_t *counters, const int64_t *publishers, const int64_t *offsets,
                         const int64_t *origins, size_t rows, uint8_t *ids, uint8_t *ordered)
{
    for (size_t row = 0; row < rows; row++) {
        uint32_t broker = __builtin_bswap32((uint32_t)origins[row]);
        uint64_t last = 0;
        ordered[row] = 1;
        for (int64_t i = offsets[row]; i < offsets[row + 1]; i++) {
            uint64_t tick = (uint64_t)milliseconds[i] << 16 | (uint64_t)(int64_t)counters[i];
            uint32_t publisher = __builtin_bswap32((uint32_t)publishers[i]);
            if (tick < last)
                ordered[row] = 0;
            last = tick;
            tick = __builtin_bswap64(tick);
            memcpy(ids + 16 * i, &publisher, 4);
            memcpy(ids + 16 * i + 4, &broker, 4);
            memcpy(ids + 16 * i + 8, &tick, 8);
        }
    }
}
