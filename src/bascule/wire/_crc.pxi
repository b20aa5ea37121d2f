# CRC-32C: by the processor's own instruction where there is one, by tables of eight bytes a step elsewhere.

cdef extern from *:
    """
    static uint32_t crc_tables[8][256];

    static void crc_make_tables(void) {
        for (uint32_t i = 0; i < 256; i++) {
            uint32_t crc = i;
            for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
            crc_tables[0][i] = crc;
        }
        for (uint32_t i = 0; i < 256; i++)
            for (int t = 1; t < 8; t++)
                crc_tables[t][i] = (crc_tables[t - 1][i] >> 8) ^ crc_tables[0][crc_tables[t - 1][i] & 0xFF];
    }

    static uint32_t crc_by_table(uint32_t crc, const uint8_t *p, size_t n) {
        while (n >= 8) {
            uint32_t low = crc ^ get_le32(p), high = get_le32(p + 4);
            crc = crc_tables[7][low & 0xFF] ^ crc_tables[6][(low >> 8) & 0xFF]
                ^ crc_tables[5][(low >> 16) & 0xFF] ^ crc_tables[4][low >> 24]
                ^ crc_tables[3][high & 0xFF] ^ crc_tables[2][(high >> 8) & 0xFF]
                ^ crc_tables[1][(high >> 16) & 0xFF] ^ crc_tables[0][high >> 24];
            p += 8; n -= 8;
        }
        while (n--) crc = (crc >> 8) ^ crc_tables[0][(crc ^ *p++) & 0xFF];
        return crc;
    }

    static uint32_t (*crc_step)(uint32_t crc, const uint8_t *p, size_t n) = crc_by_table;

    #if defined(__x86_64__) && defined(__GNUC__)
    #include <immintrin.h>
    #define CRC_SHORT 64
    #define CRC_LONG 1024
    static uint32_t crc_shift_short[2], crc_shift_long[2];

    /* x^n modulo the polynomial, bits reversed as everything here. */
    static uint32_t crc_power(uint32_t n) {
        uint32_t power = 0x80000000u;
        while (n--) power = (power >> 1) ^ (0x82F63B78u & (0u - (power & 1)));
        return power;
    }

    /* Moves a CRC over as many zero bytes as `shift` was made for. The product of two reversed numbers is one bit
       short and the instruction itself multiplies by x^32: so `shift` is x^(8 * bytes - 33). */
    #define CRC_OVER(crc, shift) _mm_crc32_u64(0, (uint64_t)_mm_cvtsi128_si64(_mm_clmulepi64_si128( \
        _mm_cvtsi32_si128((int)(crc)), _mm_cvtsi32_si128((int)(shift)), 0)))

    /* The instruction takes three cycles but can start every cycle: three stretches side by side, joined after. */
    #define CRC_THREE(stretch, shifts) \
        while (n >= 3 * stretch) { \
            uint64_t two = 0, three = 0; \
            for (size_t i = 0; i < stretch; i += 8) { \
                one = _mm_crc32_u64(one, any64(p + i)); \
                two = _mm_crc32_u64(two, any64(p + stretch + i)); \
                three = _mm_crc32_u64(three, any64(p + 2 * stretch + i)); \
            } \
            one = CRC_OVER(one, shifts[1]) ^ CRC_OVER(two, shifts[0]) ^ three; \
            p += 3 * stretch; n -= 3 * stretch; \
        }

    __attribute__((target("sse4.2,pclmul")))
    static uint32_t crc_by_instruction(uint32_t start, const uint8_t *p, size_t n) {
        uint64_t one = start;
        CRC_THREE(CRC_LONG, crc_shift_long)
        CRC_THREE(CRC_SHORT, crc_shift_short)
        while (n >= 8) { one = _mm_crc32_u64(one, any64(p)); p += 8; n -= 8; }
        if (n & 4) { one = _mm_crc32_u32((uint32_t)one, any32(p)); p += 4; }
        if (n & 2) { one = _mm_crc32_u16((uint32_t)one, (uint16_t)get_le16(p)); p += 2; }
        if (n & 1) one = _mm_crc32_u8((uint32_t)one, *p);
        return (uint32_t)one;
    }
    #endif

    static void crc_choose(int table_only) {
        crc_make_tables();
        crc_step = crc_by_table;
    #if defined(__x86_64__) && defined(__GNUC__)
        crc_shift_short[0] = crc_power(8 * CRC_SHORT - 33);
        crc_shift_short[1] = crc_power(16 * CRC_SHORT - 33);
        crc_shift_long[0] = crc_power(8 * CRC_LONG - 33);
        crc_shift_long[1] = crc_power(16 * CRC_LONG - 33);
        __builtin_cpu_init();
        if (!table_only && __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("pclmul"))
            crc_step = crc_by_instruction;
    #endif
    }

    static inline uint32_t crc_extend(uint32_t value, const uint8_t *p, size_t n) {
        return ~crc_step(~value, p, n);
    }
    """
    void crc_choose(bint table_only) noexcept
    uint32_t crc_extend(uint32_t value, const uint8_t *p, size_t n) noexcept nogil

crc_choose(False)


def _crc_by_table_only(bint table_only):
    """For tests: makes every kernel use the tables (True), or the best way again (False)."""
    crc_choose(table_only)


def crc32c(object data, uint32_t value=0):
    """The CRC-32C of `data`; `value` is the running value to extend."""
    cdef Py_buffer view
    cdef uint32_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if view.len >= UNLOCK_FROM_BYTES:
            with nogil:
                result = crc_extend(value, <const uint8_t *>view.buf, view.len)
        else:
            result = crc_extend(value, <const uint8_t *>view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return result
