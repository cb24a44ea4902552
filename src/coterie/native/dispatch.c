/* What a library holds. Needs SOURCES, the fingerprint of the sources, as a string. */
#include "interface.h"

#if !defined(SOURCES)
#error "dispatch.c needs SOURCES"
#endif

const char *coterie_sources(void) { return SOURCES; }

const char *coterie_variants(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const int fused = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (fused && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return "avx512 avx2 generic";
    if (fused)
        return "avx2 generic";
#endif
    return "generic";
}
