/* STREAM's triad of doubles: a[i] = b[i] + factor * c[i].

   rdi, rsi, rdx   the addresses of a, b and c, each a multiple of 16
   rcx             the size of each array in bytes, a multiple of 32 above 0
   xmm0            factor

   Only SSE2 is used, which every x86-64 has. */
.intel_syntax noprefix
.globl triad
triad:
    unpcklpd xmm0, xmm0             /* factor in both halves */
0:
    movapd xmm1, [rdx]              /* four elements of c: half a cache line */
    movapd xmm2, [rdx + 16]
    mulpd xmm1, xmm0
    mulpd xmm2, xmm0
    addpd xmm1, [rsi]
    addpd xmm2, [rsi + 16]
    /* These stores bypass the caches. An ordinary store first reads the line that it writes to, and STREAM does not
       count that read: its bandwidth would be a quarter too low. */
    movntpd [rdi], xmm1
    movntpd [rdi + 16], xmm2
    add rdx, 32
    add rsi, 32
    add rdi, 32
    sub rcx, 32
    jnz 0b
    sfence                          /* the time ends when other CPUs see the stores, which are not ordered by themselves */
    ret
