/* STREAM's triad of doubles: a[i] = b[i] + factor * c[i].

   x0, x1, x2   the addresses of a, b and c
   x3           the size of each array in bytes, a multiple of 32 above 0
   d0           factor

   The stores are ordinary ones: Neoverse V2 does not read lines that are written as a whole. */
.globl triad
triad:
    dup v0.2d, v0.d[0]              /* factor in both halves */
0:
    ldp q1, q2, [x1], 32            /* four elements of b, and b's address moves on */
    ldp q3, q4, [x2], 32
    fmla v1.2d, v3.2d, v0.2d
    fmla v2.2d, v4.2d, v0.2d
    stp q1, q2, [x0], 32
    subs x3, x3, 32
    b.ne 0b
    ret
