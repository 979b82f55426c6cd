// What C++ and the Metal language leave undefined: the calls that -fsanitize puts beside the
// operations, in the form that both GCC and clang give their data.
#include "state.h"

namespace pkv {

struct Location {
    const char* file;
    uint32_t line;
    uint32_t column;
};

struct Type {
    uint16_t kind;
    uint16_t info;
    char name[1];
};

struct OfType {
    Location location;
    const Type* type;
};

struct OfTwoTypes {
    Location location;
    const Type* first;
    const Type* second;
};

struct Mismatch {
    Location location;
    const Type* type;
    unsigned char log_alignment;
    unsigned char kind;
};

// An integer no wider than a pointer is handed over in one.
static long long value_of(const Type* type, uintptr_t handle) {
    const unsigned bits = 1u << (type->info >> 1);
    const bool is_signed = type->info & 1;
    if (is_signed && bits < 64) {
        return static_cast<long long>(handle << (64 - bits)) >> (64 - bits);
    }
    return static_cast<long long>(handle);
}

// The dialect's own headers are not where the mistake is: the code address leads out of them.
static const char* where_in_text(const Location& at, const void* code) {
    return at.file[0] == '<' ? where(code) : where(Place{at.file, static_cast<int>(at.line)});
}

[[noreturn]] static void report_overflow(const OfType* data, const char* sign, uintptr_t a,
                                         uintptr_t b, const void* code) {
    report("signed overflow", "%s computes %lld %s %lld, which no %s holds, at %s", who(current),
           value_of(data->type, a), sign, value_of(data->type, b), data->type->name,
           where_in_text(data->location, code));
}

}  // namespace pkv

using namespace pkv;

#define PKV_CODE __builtin_return_address(0)

#define PKV_OVERFLOW(NAME, SIGN)                                                               \
    extern "C" void __ubsan_handle_##NAME##_overflow(OfType* data, uintptr_t a, uintptr_t b) { \
        report_overflow(data, SIGN, a, b, PKV_CODE);                                           \
    }
PKV_OVERFLOW(add, "+")
PKV_OVERFLOW(sub, "-")
PKV_OVERFLOW(mul, "*")

extern "C" void __ubsan_handle_negate_overflow(OfType* data, uintptr_t value) {
    report("signed overflow", "%s computes -(%lld), which no %s holds, at %s", who(current),
           value_of(data->type, value), data->type->name, where_in_text(data->location, PKV_CODE));
}

extern "C" void __ubsan_handle_divrem_overflow(OfType* data, uintptr_t a, uintptr_t b) {
    report("division without a result", "%s computes %lld / %lld at %s", who(current),
           value_of(data->type, a), value_of(data->type, b),
           where_in_text(data->location, PKV_CODE));
}

extern "C" void __ubsan_handle_shift_out_of_bounds(OfTwoTypes* data, uintptr_t a, uintptr_t b) {
    report("shift without a result", "%s shifts %lld, a %s, by %lld at %s", who(current),
           value_of(data->first, a), data->first->name, value_of(data->second, b),
           where_in_text(data->location, PKV_CODE));
}

extern "C" void __ubsan_handle_out_of_bounds(OfTwoTypes* data, uintptr_t index) {
    report("index out of bounds", "%s takes element %lld of %s at %s", who(current),
           value_of(data->second, index), data->first->name,
           where_in_text(data->location, PKV_CODE));
}

extern "C" void __ubsan_handle_type_mismatch_v1(Mismatch* data, uintptr_t address) {
    const uintptr_t beyond = address & ((uintptr_t(1) << data->log_alignment) - 1);
    if (beyond == 0) {
        report("access to no buffer", "%s takes a %s at address %p, at %s", who(current),
               data->type->name, reinterpret_cast<void*>(address),
               where_in_text(data->location, PKV_CODE));
    }
    report("misaligned access",
           "%s takes a %s, of alignment %u, at an address that is %u beyond that, at %s",
           who(current), data->type->name, 1u << data->log_alignment, unsigned(beyond),
           where_in_text(data->location, PKV_CODE));
}

extern "C" void __ubsan_handle_missing_return(Location* location) {
    report("function without a result", "%s reaches the end of a function at %s", who(current),
           where_in_text(*location, PKV_CODE));
}

// Defined, and yet wrong in nearly every address that comes of it.
extern "C" void pkv_wrapped(uint a, uint b) {
    report("product past 32 bits",
           "%s computes %u * %u in 32 bits, which loses the upper ones, at %s", who(current), a, b,
           where(PKV_CODE));
}
