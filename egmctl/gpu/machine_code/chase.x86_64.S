/* A walk along a pointer chain: each load gives the offset of the next, so that their latencies add up.

   rdi   the offset of the first load
   rsi   the number of loads, at least one
   rdx   the address of the memory
   rcx   a mask, which keeps corrupt offsets within the memory, for one cycle a load
   rax   returned: the offset that the last load read */
.intel_syntax noprefix
.globl chase
chase:
0:
    mov rdi, [rdx + rdi]
    and rdi, rcx
    dec rsi
    jnz 0b
    mov rax, rdi
    ret
