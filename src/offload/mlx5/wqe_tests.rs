//! Elements against the public layouts, and decoding as the inverse of encoding.
#![forbid(unsafe_code)]

use proptest::prelude::*;

use super::wqe::{
    BLOCK, Condition, Element, ElementError, Fence, Location, Miss, Operation, Payload, Report, WaitWord,
};

/// Returns the bytes of hexadecimal digits; spaces separate fields.
fn bytes(digits: &[&str]) -> Vec<u8> {
    let digits: Vec<u8> = digits.iter().flat_map(|line| line.bytes()).filter(|byte| *byte != b' ').collect();
    let digit = |digit: u8| (digit as char).to_digit(16).unwrap() as u8;
    digits.chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

/// Checks that an element has these bytes, then zeros up to the end of its block, and is decoded from them.
#[track_caller]
fn assert_bytes(element: &Element, index: u16, digits: &[&str]) {
    let (encoded, expected) = (element.encode(index).unwrap(), bytes(digits));
    assert!(encoded.len().is_multiple_of(BLOCK));
    let (used, unused) = encoded.split_at(expected.len());
    assert_eq!(used, expected);
    assert!(unused.iter().all(|byte| *byte == 0));
    assert_eq!(Element::length(encoded.first_chunk().unwrap()), expected.len());
    assert_eq!(Element::decode(&expected), Ok((index, element.clone())));
}

const THERE: Location = Location { key: 0x0000_beef, address: 0x0000_7f00_1122_3340 };
const HERE: Location = Location { key: 0x0000_1111, address: 0x0000_7f00_aabb_cc00 };

/// `mlx5dv.h`: `mlx5_wqe_ctrl_seg`, `mlx5_wqe_raddr_seg`, `mlx5_wqe_data_seg`; `mlx5dv_set_ctrl_seg` says where
/// modifier, index, opcode, number of segments and flags are.
#[test]
fn a_write_has_the_bytes_of_rdma_core() {
    let operation = Operation::Write { to: THERE, data: Payload::Gather(vec![(HERE, 0x40), (HERE, 0x0102_0304)]) };
    let element = Element { queue: 0x00ab_cdef, fence: Fence::Reads, report: Report::Always, operation };
    let digits = [
        "00 1234 08",        // modifier, index, opcode RDMA_WRITE
        "abcdef 04",         // queue pair, segments
        "00 0000 88",        // signature, stream, flags: FENCE (4 << 5) and CQ_UPDATE (2 << 2)
        "00000000",          // immediate
        "00007f0011223340",  // remote address
        "0000beef 00000000", // remote key, reserved
        "00000040 00001111", // length, local key
        "00007f00aabbcc00",  // local address
        "01020304 00001111", // the second piece
        "00007f00aabbcc00",
    ];
    assert_bytes(&element, 0x1234, &digits);
}

/// `qp.c` of the mlx5 provider: a length with `MLX5_INLINE_SEG`, the data, and zeros up to a multiple of 16.
#[test]
fn data_in_the_element_have_the_bytes_of_rdma_core() {
    let data = Payload::Inline(b"thirteen byte".to_vec());
    let digits = [
        "00 ffff 08",
        "000007 04",
        "00 0000 00",
        "00000000",
        "00007f0011223340 0000beef 00000000",
        "8000000d 746869727465656e 20627974", // INLINE_SEG | 13, the data
        "65 000000000000000000000000000000",
    ];
    assert_bytes(&Element::quiet(7, Operation::Write { to: THERE, data }), 0xffff, &digits);
}

/// Encoded as a write; `imm` is in network order. `qp.c` leaves out pieces without bytes, so this has none.
#[test]
fn a_write_with_immediate_has_the_bytes_of_rdma_core() {
    let data = Payload::Gather(Vec::new());
    let operation = Operation::WriteImmediate { to: THERE, data, immediate: 0x0a0b_0c0d };
    let element = Element { fence: Fence::Keys, ..Element::quiet(7, operation) };
    let digits = [
        "00 0001 09", // opcode RDMA_WRITE_IMM
        "000007 02",
        "00 0000 20", // INITIATOR_SMALL_FENCE (1 << 5)
        "0a0b0c0d",   // immediate
        "00007f0011223340 0000beef 00000000",
    ];
    assert_bytes(&element, 1, &digits);
}

/// `mlx5dv.h`: `mlx5_wqe_atomic_seg`; `qp.c` puts the addend first. The earlier value needs 8 bytes.
#[test]
fn a_fetch_and_add_has_the_bytes_of_rdma_core() {
    let add = u64::MAX - 1;
    let digits = [
        "00 0002 12", // opcode ATOMIC_FA
        "000007 04",
        "00 0000 00",
        "00000000",
        "00007f0011223340 0000beef 00000000",
        "fffffffffffffffe", // addend
        "0000000000000000", // no comparison
        "00000008 00001111 00007f00aabbcc00",
    ];
    assert_bytes(&Element::quiet(7, Operation::FetchAdd { to: THERE, add, before: HERE }), 2, &digits);
}

/// DPDK: opcode WAIT and modifier `WAIT_CQ_PI` (`mlx5_prm.h`), and the segment `mlx5_wqe_qseg` as `mlx5_txpp.c`
/// fills it: two reserved words, the index (24 bits), the completion queue.
#[test]
fn a_wait_for_completions_has_the_bytes_of_dpdk() {
    let operation = Operation::WaitCompletions { queue: 0x0000_0142, count: 0x00ff_fffe };
    let digits = ["00 0003 0f", "000007 02", "00 0000 00", "00000000", "00000000 00000000", "00fffffe 00000142"];
    assert_bytes(&Element::quiet(7, operation), 3, &digits);
}

/// UCC, `tl_mlx5_wqe.c`: modifier 1, condition *equal*, local key, address, value and mask. UCC stores value and mask
/// in the order of the host, which is the order of the word that a fetch-and-add has changed: here 8, low half.
#[test]
fn a_wait_for_a_word_has_the_bytes_of_ucc() {
    let wait = WaitWord {
        condition: Condition::Equal,
        invert: false,
        miss: Miss::Retry,
        word: HERE,
        value: 8u64.to_le_bytes(),
        mask: 0xffff_ffffu64.to_le_bytes(),
    };
    let element = Element { report: Report::Always, ..Element::quiet(7, Operation::WaitWord(wait)) };
    let digits = [
        "01 0004 0f", // modifier WAIT_DATA, opcode WAIT
        "000007 03",
        "00 0000 08", // CQ_UPDATE
        "00000000",
        "00000001 00001111", // equal, local key
        "00007f00aabbcc00",  // address, with the action on failure in its low bits: retry
        "0800000000000000",
        "ffffffff00000000",
    ];
    assert_bytes(&element, 4, &digits);
}

/// DPDK's `MLX5_WAIT_COND_INVERT`, and the action on failure as FlexIO places it: in the address's low three bits.
#[test]
fn a_wait_may_be_inverted_and_may_fail() {
    let wait = WaitWord {
        condition: Condition::CyclicSmaller,
        invert: true,
        miss: Miss::Fail,
        word: HERE,
        value: 0x0102_0304_0506_0708u64.to_be_bytes(),
        mask: [0xff; 8],
    };
    let digits = [
        "01 0005 0f 000007 03 00 0000 00 00000000",
        "00000015 00001111",
        "00007f00aabbcc01",
        "0102030405060708",
        "ffffffffffffffff",
    ];
    assert_bytes(&Element::quiet(7, Operation::WaitWord(wait)), 5, &digits);
}

#[test]
fn what_does_not_fit_is_refused() {
    let write = |data| Element::quiet(7, Operation::Write { to: THERE, data }).encode(0);
    let none = Element::quiet(1 << 24, Operation::WaitCompletions { queue: 0, count: 0 });
    let range = |field, value| Err(ElementError::Range { field, value, bits: 24 });
    assert_eq!(none.encode(0), range("queue pair", 1 << 24));
    let wait = |queue, count| Element::quiet(7, Operation::WaitCompletions { queue, count }).encode(0);
    assert_eq!(wait(1 << 24, 0), range("completion queue", 1 << 24));
    assert_eq!(wait(0, 1 << 24), range("number of entries", 1 << 24));
    // A length of zero means 2^31 bytes (`qp.c`, on the largest copy).
    assert_eq!(write(Payload::Gather(vec![(HERE, 0)])), Err(ElementError::Length(0)));
    assert_eq!(write(Payload::Gather(vec![(HERE, 1 << 31)])), Err(ElementError::Length(1 << 31)));
    assert_eq!(write(Payload::Inline(Vec::new())), Err(ElementError::Length(0)));
    // 63 segments, of which two are control and remote address.
    assert_eq!(write(Payload::Inline(vec![0; 61 * 16 - 4])).unwrap().len(), 16 * BLOCK);
    assert_eq!(write(Payload::Inline(vec![0; 61 * 16 - 3])), Err(ElementError::TooLong(64)));
    assert_eq!(write(Payload::Gather(vec![(HERE, 1); 62])), Err(ElementError::TooLong(64)));
    let odd = Location { address: HERE.address + 4, ..HERE };
    let add = Element::quiet(7, Operation::FetchAdd { to: odd, add: 1, before: HERE });
    assert_eq!(add.encode(0), Err(ElementError::Misaligned(odd.address)));
}

#[test]
fn bytes_without_a_meaning_are_refused() {
    let good = Element::quiet(7, Operation::WaitCompletions { queue: 1, count: 2 }).encode(9).unwrap();
    let changed = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Element::decode(&bytes).unwrap_err()
    };
    assert_eq!(changed(3, 0x17), ElementError::Opcode { opcode: 0x17, modifier: 0 }, "SEND_EN");
    assert_eq!(changed(0, 2), ElementError::Opcode { opcode: 0x0f, modifier: 2 }, "a wait for the time");
    assert_eq!(changed(7, 3), ElementError::Segments(3));
    assert_eq!(changed(7, 1), ElementError::Segments(1));
    assert_eq!(changed(11, 7 << 5), ElementError::Meaning("fence"));
    assert_eq!(changed(11, 1 << 1), ElementError::Meaning("control"), "solicited events are not used");
    assert_eq!(changed(15, 1), ElementError::Meaning("immediate"));
    assert_eq!(changed(16, 1), ElementError::Meaning("wait"));
    assert_eq!(Element::decode(&good[..31]), Err(ElementError::Truncated { have: 31, need: 32 }));
    assert_eq!(Element::decode(&[]), Err(ElementError::Truncated { have: 0, need: 16 }));
    assert_eq!(Element::decode(&[0; 64]), Err(ElementError::Segments(0)), "a queue that was never written");
}

fn location() -> impl Strategy<Value = Location> {
    (any::<u32>(), any::<u64>()).prop_map(|(key, address)| Location { key, address })
}

fn word() -> impl Strategy<Value = Location> {
    location().prop_map(|location| Location { address: location.address & !7, ..location })
}

fn payload() -> impl Strategy<Value = Payload> {
    prop_oneof![
        prop::collection::vec((location(), 1u32..1 << 31), 0..=60).prop_map(Payload::Gather),
        prop::collection::vec(any::<u8>(), 1..=960).prop_map(Payload::Inline),
    ]
}

fn wait() -> impl Strategy<Value = WaitWord> {
    use Condition::*;
    let conditions = vec![Always, Equal, Bigger, Smaller, CyclicBigger, CyclicSmaller];
    let misses = vec![Miss::Retry, Miss::Fail];
    let how = (prop::sample::select(conditions), any::<bool>(), prop::sample::select(misses));
    (how, word(), any::<[u8; 8]>(), any::<[u8; 8]>()).prop_map(|((condition, invert, miss), word, value, mask)| {
        WaitWord { condition, invert, miss, word, value, mask }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        (location(), payload()).prop_map(|(to, data)| Operation::Write { to, data }),
        (location(), payload(), any::<u32>()).prop_map(|(to, data, immediate)| Operation::WriteImmediate {
            to,
            data,
            immediate
        }),
        (word(), any::<u64>(), location()).prop_map(|(to, add, before)| Operation::FetchAdd { to, add, before }),
        (0u32..1 << 24, 0u32..1 << 24).prop_map(|(queue, count)| Operation::WaitCompletions { queue, count }),
        wait().prop_map(Operation::WaitWord),
    ]
}

fn element() -> impl Strategy<Value = Element> {
    use Fence::*;
    let fences = prop::sample::select(vec![None, Keys, Reads]);
    let reports = prop::sample::select(vec![Report::Errors, Report::FirstError, Report::Always, Report::Event]);
    (0u32..1 << 24, fences, reports, operation()).prop_map(|(queue, fence, report, operation)| Element {
        queue,
        fence,
        report,
        operation,
    })
}

proptest! {
    #[test]
    fn decoding_inverts_encoding(element in element(), index in any::<u16>()) {
        let bytes = element.encode(index).unwrap();
        prop_assert_eq!(Element::decode(&bytes), Ok((index, element)));
    }

    /// A decoded element has exactly those bytes, up to the padding: no field is ignored.
    #[test]
    fn encoding_inverts_decoding(element in element(), index in any::<u16>(), at in 0usize..64, flip in 1u8..) {
        let mut bytes = element.encode(index).unwrap();
        bytes[at] ^= flip;
        if let Ok((index, element)) = Element::decode(&bytes) {
            let again = element.encode(index).unwrap();
            let length = Element::length(bytes.first_chunk().unwrap());
            let padding = matches!(
                &element.operation,
                Operation::Write { data: Payload::Inline(_), .. } | Operation::WriteImmediate { data: Payload::Inline(_), .. }
            );
            prop_assert!(padding || again[..length] == bytes[..length]);
        }
    }
}
