//! What the decoder says of instructions, which GNU as has assembled.

use super::*;

const AT: u64 = 0x40_0000;

fn place(base: Option<u8>, index: Option<(u8, u8)>, displacement: u64) -> Place {
    Place {
        base,
        index,
        displacement,
    }
}

/// A store to `[rdi]`.
fn store(len: usize, from: Source) -> What {
    let at = place(Some(7), None, 0);
    What::Store { at, len, from }
}

/// A load from `[rsi]`.
fn load(len: usize, into: Target) -> What {
    let at = place(Some(6), None, 0);
    What::Load { at, len, into }
}

fn general(register: u8, bit: u8) -> Source {
    Source::General { register, bit }
}

fn constant(value: u64) -> Source {
    Source::Constant(value)
}

fn vector(register: u8, byte: u8) -> Source {
    Source::Vector { register, byte }
}

fn into(register: u8, bit: u8, width: u8, signed: bool) -> Target {
    Target::General {
        register,
        bit,
        width,
        signed,
    }
}

fn into_vector(register: u8, byte: u8, zeros: u8) -> Target {
    Target::Vector {
        register,
        byte,
        zeros,
    }
}

fn strings(element: usize, repeated: bool, copies: bool) -> What {
    What::Strings {
        element,
        repeated,
        copies,
    }
}

/// Constants are compared as far as they are stored.
fn cut(what: What) -> What {
    match what {
        What::Store {
            at,
            len,
            from: Source::Constant(value),
        } => What::Store {
            at,
            len,
            from: Source::Constant(value & (u64::MAX >> (64 - 8 * len))),
        },
        other => other,
    }
}

fn check(cases: &[(&[u8], What)]) {
    for (code, expected) in cases {
        // What follows the instruction does not matter.
        let mut code = code.to_vec();
        let length = code.len();
        code.extend([0xcc; 15]);
        let instruction = instruction(&code[..15], AT);
        let decoded = what(&instruction).map(|what| (instruction.len(), cut(what)));
        assert_eq!(decoded, Some((length, *expected)), "{:x?}", &code[..length]);
    }
}

#[test]
fn stores_of_general_registers_and_constants() {
    check(&[
        // mov BYTE PTR [rdi],al
        (&[0x88, 0x07], store(1, general(0, 0))),
        // mov BYTE PTR [rbx+rcx*4+0x10],ah
        (
            &[0x88, 0x64, 0x8b, 0x10],
            What::Store {
                at: place(Some(3), Some((1, 4)), 0x10),
                len: 1,
                from: general(0, 8),
            },
        ),
        // mov WORD PTR [r13-0x8],r9w
        (
            &[0x66, 0x45, 0x89, 0x4d, 0xf8],
            What::Store {
                at: place(Some(13), None, 8_u64.wrapping_neg()),
                len: 2,
                from: general(9, 0),
            },
        ),
        // mov DWORD PTR [rsp+0x8],r12d
        (
            &[0x44, 0x89, 0x64, 0x24, 0x08],
            What::Store {
                at: place(Some(4), None, 8),
                len: 4,
                from: general(12, 0),
            },
        ),
        // mov QWORD PTR [rdi],rax
        (&[0x48, 0x89, 0x07], store(8, general(0, 0))),
        // mov BYTE PTR [rdi],0x80
        (&[0xc6, 0x07, 0x80], store(1, constant(0x80))),
        // mov WORD PTR [rdi],0x1234
        (&[0x66, 0xc7, 0x07, 0x34, 0x12], store(2, constant(0x1234))),
        // mov DWORD PTR [rdi],0xfffffffe
        (
            &[0xc7, 0x07, 0xfe, 0xff, 0xff, 0xff],
            store(4, constant(0xffff_fffe)),
        ),
        // mov QWORD PTR [rdi],0xfffffffffffffffe
        (
            &[0x48, 0xc7, 0x07, 0xfe, 0xff, 0xff, 0xff],
            store(8, constant(u64::MAX - 1)),
        ),
        // mov QWORD PTR [rip+0x10],rdx
        (
            &[0x48, 0x89, 0x15, 0x10, 0x00, 0x00, 0x00],
            What::Store {
                at: place(None, None, AT + 7 + 0x10),
                len: 8,
                from: general(2, 0),
            },
        ),
    ]);
}

#[test]
fn stores_around_caches_and_to_constant_addresses() {
    check(&[
        // movnti DWORD PTR [rdi],eax
        (&[0x0f, 0xc3, 0x07], store(4, general(0, 0))),
        // movnti QWORD PTR [rdi],r10
        (&[0x4c, 0x0f, 0xc3, 0x17], store(8, general(10, 0))),
        // movabs ds:0x1122334455667788,al
        (
            &[0xa2, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11],
            What::Store {
                at: place(None, None, 0x1122_3344_5566_7788),
                len: 1,
                from: general(0, 0),
            },
        ),
    ]);
}

#[test]
fn loads_into_general_registers() {
    check(&[
        // mov al,BYTE PTR [rsi]
        (&[0x8a, 0x06], load(1, into(0, 0, 1, false))),
        // mov ch,BYTE PTR [rsi]
        (&[0x8a, 0x2e], load(1, into(1, 8, 1, false))),
        // mov r8w,WORD PTR [rsi]
        (&[0x66, 0x44, 0x8b, 0x06], load(2, into(8, 0, 2, false))),
        // mov r8d,DWORD PTR [rsi]
        (&[0x44, 0x8b, 0x06], load(4, into(8, 0, 4, false))),
        // mov r8,QWORD PTR [rsi]
        (&[0x4c, 0x8b, 0x06], load(8, into(8, 0, 8, false))),
        // movzx eax,BYTE PTR [rsi]
        (&[0x0f, 0xb6, 0x06], load(1, into(0, 0, 4, false))),
        // movzx r9,WORD PTR [rsi]
        (&[0x4c, 0x0f, 0xb7, 0x0e], load(2, into(9, 0, 8, false))),
        // movsx ax,BYTE PTR [rsi]
        (&[0x66, 0x0f, 0xbe, 0x06], load(1, into(0, 0, 2, true))),
        // movsx rcx,WORD PTR [rsi]
        (&[0x48, 0x0f, 0xbf, 0x0e], load(2, into(1, 0, 8, true))),
        // movsxd rcx,DWORD PTR [rsi]
        (&[0x48, 0x63, 0x0e], load(4, into(1, 0, 8, true))),
    ]);
}

#[test]
fn stores_of_vectors() {
    check(&[
        // movaps XMMWORD PTR [rdi],xmm3
        (&[0x0f, 0x29, 0x1f], store(16, vector(3, 0))),
        // movups XMMWORD PTR [rdi],xmm12
        (&[0x44, 0x0f, 0x11, 0x27], store(16, vector(12, 0))),
        // movdqa XMMWORD PTR [rdi],xmm1
        (&[0x66, 0x0f, 0x7f, 0x0f], store(16, vector(1, 0))),
        // movdqu XMMWORD PTR [rdi],xmm1
        (&[0xf3, 0x0f, 0x7f, 0x0f], store(16, vector(1, 0))),
        // movntdq XMMWORD PTR [rdi],xmm2
        (&[0x66, 0x0f, 0xe7, 0x17], store(16, vector(2, 0))),
        // movntps XMMWORD PTR [rdi],xmm2
        (&[0x0f, 0x2b, 0x17], store(16, vector(2, 0))),
        // movd DWORD PTR [rdi],xmm1
        (&[0x66, 0x0f, 0x7e, 0x0f], store(4, vector(1, 0))),
        // movq QWORD PTR [rdi],xmm1
        (&[0x66, 0x0f, 0xd6, 0x0f], store(8, vector(1, 0))),
        // movss DWORD PTR [rdi],xmm1
        (&[0xf3, 0x0f, 0x11, 0x0f], store(4, vector(1, 0))),
        // movsd QWORD PTR [rdi],xmm1
        (&[0xf2, 0x0f, 0x11, 0x0f], store(8, vector(1, 0))),
        // movlps QWORD PTR [rdi],xmm1
        (&[0x0f, 0x13, 0x0f], store(8, vector(1, 0))),
        // movhps QWORD PTR [rdi],xmm1
        (&[0x0f, 0x17, 0x0f], store(8, vector(1, 8))),
        // movhpd QWORD PTR [rdi],xmm1
        (&[0x66, 0x0f, 0x17, 0x0f], store(8, vector(1, 8))),
        // vmovdqu YMMWORD PTR [rdi],ymm9
        (&[0xc5, 0x7e, 0x7f, 0x0f], store(32, vector(9, 0))),
        // vmovntdq YMMWORD PTR [rdi],ymm9
        (&[0xc5, 0x7d, 0xe7, 0x0f], store(32, vector(9, 0))),
        // vmovups XMMWORD PTR [rdi],xmm9
        (&[0xc5, 0x78, 0x11, 0x0f], store(16, vector(9, 0))),
        // vextracti128 XMMWORD PTR [rdi],ymm4,0x1
        (
            &[0xc4, 0xe3, 0x7d, 0x39, 0x27, 0x01],
            store(16, vector(4, 16)),
        ),
        // vextractf128 XMMWORD PTR [rdi],ymm4,0x0
        (
            &[0xc4, 0xe3, 0x7d, 0x19, 0x27, 0x00],
            store(16, vector(4, 0)),
        ),
        // vmovdqu64 ZMMWORD PTR [rdi],zmm20
        (
            &[0x62, 0xe1, 0xfe, 0x48, 0x7f, 0x27],
            store(64, vector(20, 0)),
        ),
        // vmovntdq ZMMWORD PTR [rdi],zmm5
        (
            &[0x62, 0xf1, 0x7d, 0x48, 0xe7, 0x2f],
            store(64, vector(5, 0)),
        ),
        // vmovdqu32 YMMWORD PTR [rdi],ymm17
        (
            &[0x62, 0xe1, 0x7e, 0x28, 0x7f, 0x0f],
            store(32, vector(17, 0)),
        ),
        // vmovq QWORD PTR [rdi],xmm1
        (&[0xc5, 0xf9, 0xd6, 0x0f], store(8, vector(1, 0))),
    ]);
}

#[test]
fn loads_into_vectors() {
    check(&[
        // movaps xmm3,XMMWORD PTR [rsi]
        (&[0x0f, 0x28, 0x1e], load(16, into_vector(3, 0, 16))),
        // movdqu xmm12,XMMWORD PTR [rsi]
        (
            &[0xf3, 0x44, 0x0f, 0x6f, 0x26],
            load(16, into_vector(12, 0, 16)),
        ),
        // movss xmm1,DWORD PTR [rsi]
        (&[0xf3, 0x0f, 0x10, 0x0e], load(4, into_vector(1, 0, 16))),
        // movd xmm1,DWORD PTR [rsi]
        (&[0x66, 0x0f, 0x6e, 0x0e], load(4, into_vector(1, 0, 16))),
        // movq xmm1,QWORD PTR [rsi]
        (&[0xf3, 0x0f, 0x7e, 0x0e], load(8, into_vector(1, 0, 16))),
        // movsd xmm1,QWORD PTR [rsi]
        (&[0xf2, 0x0f, 0x10, 0x0e], load(8, into_vector(1, 0, 16))),
        // movlps xmm1,QWORD PTR [rsi]
        (&[0x0f, 0x12, 0x0e], load(8, into_vector(1, 0, 8))),
        // movhps xmm1,QWORD PTR [rsi]
        (&[0x0f, 0x16, 0x0e], load(8, into_vector(1, 8, 16))),
        // lddqu xmm1,[rsi]
        (&[0xf2, 0x0f, 0xf0, 0x0e], load(16, into_vector(1, 0, 16))),
        // movntdqa xmm1,XMMWORD PTR [rsi]
        (
            &[0x66, 0x0f, 0x38, 0x2a, 0x0e],
            load(16, into_vector(1, 0, 16)),
        ),
        // vmovdqu ymm9,YMMWORD PTR [rsi]
        (&[0xc5, 0x7e, 0x6f, 0x0e], load(32, into_vector(9, 0, 64))),
        // vmovdqu xmm9,XMMWORD PTR [rsi]
        (&[0xc5, 0x7a, 0x6f, 0x0e], load(16, into_vector(9, 0, 64))),
        // vmovss xmm9,DWORD PTR [rsi]
        (&[0xc5, 0x7a, 0x10, 0x0e], load(4, into_vector(9, 0, 64))),
        // vmovdqu64 zmm20,ZMMWORD PTR [rsi]
        (
            &[0x62, 0xe1, 0xfe, 0x48, 0x6f, 0x26],
            load(64, into_vector(20, 0, 64)),
        ),
    ]);
}

#[test]
fn strings_of_all_elements() {
    check(&[
        // rep movs BYTE PTR es:[rdi],BYTE PTR ds:[rsi]
        (&[0xf3, 0xa4], strings(1, true, true)),
        // movs QWORD PTR es:[rdi],QWORD PTR ds:[rsi]
        (&[0x48, 0xa5], strings(8, false, true)),
        // rep movs WORD PTR es:[rdi],WORD PTR ds:[rsi]
        (&[0x66, 0xf3, 0xa5], strings(2, true, true)),
        // movs DWORD PTR es:[rdi],DWORD PTR ds:[rsi]
        (&[0xa5], strings(4, false, true)),
        // rep stos BYTE PTR es:[rdi],al
        (&[0xf3, 0xaa], strings(1, true, false)),
        // stos DWORD PTR es:[rdi],eax
        (&[0xab], strings(4, false, false)),
        // rep stos QWORD PTR es:[rdi],rax
        (&[0xf3, 0x48, 0xab], strings(8, true, false)),
        // repnz stos BYTE PTR es:[rdi],al
        (&[0xf2, 0xaa], strings(1, true, false)),
    ]);
}

/// What is left to the processor.
#[test]
fn other_instructions_are_not_carried_out() {
    let cases: &[&[u8]] = &[
        // add DWORD PTR [rdi],eax
        &[0x01, 0x07],
        // xchg DWORD PTR [rdi],eax
        &[0x87, 0x07],
        // lock cmpxchg DWORD PTR [rdi],ecx
        &[0xf0, 0x0f, 0xb1, 0x0f],
        // inc QWORD PTR [rdi]
        &[0x48, 0xff, 0x07],
        // or BYTE PTR [rdi],0x1
        &[0x80, 0x0f, 0x01],
        // mov DWORD PTR fs:[rdi],eax
        &[0x64, 0x89, 0x07],
        // mov DWORD PTR [edi],eax
        &[0x67, 0x89, 0x07],
        // mov eax,DWORD PTR gs:0x10
        &[0x65, 0x8b, 0x04, 0x25, 0x10, 0x00, 0x00, 0x00],
        // mov WORD PTR [rdi],ds
        &[0x8c, 0x1f],
        // movq QWORD PTR [rdi],mm1
        &[0x0f, 0x7f, 0x0f],
        // vmovdqu32 ZMMWORD PTR [rdi]{k1},zmm1
        &[0x62, 0xf1, 0x7e, 0x49, 0x7f, 0x0f],
        // vmovhps xmm1,xmm2,QWORD PTR [rsi]
        &[0xc5, 0xe8, 0x16, 0x0e],
        // vbroadcastss ymm1,DWORD PTR [rsi]
        &[0xc4, 0xe2, 0x7d, 0x18, 0x0e],
        // cmp DWORD PTR [rsi],0x3
        &[0x83, 0x3e, 0x03],
        // push QWORD PTR [rsi]
        &[0xff, 0x36],
        // pop QWORD PTR [rdi]
        &[0x8f, 0x07],
        // rep movs BYTE PTR es:[rdi],BYTE PTR fs:[rsi]
        &[0x64, 0xf3, 0xa4],
        // rep movs BYTE PTR es:[edi],BYTE PTR ds:[esi]
        &[0x67, 0xf3, 0xa4],
        // lods al,BYTE PTR ds:[rsi]
        &[0xac],
        // cmps BYTE PTR ds:[rsi],BYTE PTR es:[rdi]
        &[0xa6],
        // movbe DWORD PTR [rdi],eax
        &[0x0f, 0x38, 0xf1, 0x07],
        // movbe eax,DWORD PTR [rsi]
        &[0x0f, 0x38, 0xf0, 0x06],
        // vpscatterdd DWORD PTR [rdi+zmm1*1]{k1},zmm2
        &[0x62, 0xf2, 0x7d, 0x49, 0xa0, 0x14, 0x0f],
        // fstp QWORD PTR [rdi]
        &[0xdd, 0x1f],
        // call QWORD PTR [rsi]
        &[0xff, 0x16],
        // Nothing, half an instruction, and none.
        &[],
        &[0x48, 0x89],
        &[0x0f, 0x0b],
    ];
    for code in cases {
        assert_eq!(what(&instruction(code, AT)), None, "{code:x?}");
    }
}

#[test]
fn addresses_wrap() {
    let values = |register: u8| [0, 3, 0, u64::MAX][usize::from(register)];
    let at = place(Some(3), Some((1, 8)), 0x10);
    assert_eq!(at.address(values), 3 * 8 + 0x10 - 1);
    assert_eq!(place(None, None, 5).address(values), 5);
}
