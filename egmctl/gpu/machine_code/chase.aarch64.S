/* A walk along a pointer chain: each load gives the offset of the next, so that their latencies add up.

   x0   the offset of the first load; returned: the offset that the last load read
   x1   the number of loads, at least one
   x2   the address of the memory
   x3   a mask, which keeps corrupt offsets within the memory, for one cycle a load */
.globl chase
chase:
0:
    ldr x0, [x2, x0]
    and x0, x0, x3
    subs x1, x1, 1
    b.ne 0b
    ret
