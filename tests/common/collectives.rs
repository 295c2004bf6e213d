//! All synchronous collectives and messages, checked against what each must give.

use std::os::unix::fs::MetadataExt as _;
use std::thread;
use std::time::Duration;

use earlybird::{Dtype, Error, Reduce, World, f16};

const DEADLINE: Duration = Duration::from_secs(60);

/// Elements of a block: none, one, a few, and more than a step moves.
const BLOCKS: [usize; 4] = [0, 1, 100, 70_001];

pub fn play(world: &World) {
    let (me, ranks, hosts) = (world.rank() as usize, world.size() as usize, world.hosts());
    for (turn, block) in BLOCKS.into_iter().enumerate() {
        let root = (turn % ranks) as u32;
        let is_root = world.rank() == root;
        let value = |rank: usize, index: usize| (rank * 1_000_003 + index * 7 + turn) as u64;
        let of = |rank: usize, length: usize| (0..length).map(|index| value(rank, index)).collect::<Vec<u64>>();
        let sums = |from: usize| -> Vec<u64> {
            (from..from + block).map(|index| (0..ranks).map(|rank| value(rank, index)).sum()).collect()
        };
        let (mine, long) = (of(me, block), of(me, ranks * block));
        let everything: Vec<u64> = (0..ranks).flat_map(|rank| of(rank, block)).collect();
        let transposed: Vec<u64> =
            (0..ranks).flat_map(|rank| (me * block..(me + 1) * block).map(move |index| value(rank, index))).collect();

        let mut data = mine.clone();
        world.broadcast(&mut data, root, DEADLINE).unwrap();
        assert_eq!(data, of(root as usize, block));
        let mut all = vec![0; ranks * block];
        world.all_gather(&mine, &mut all, DEADLINE).unwrap();
        assert_eq!(all, everything);
        all.fill(1);
        world.gather(&mine, is_root.then_some(&mut all[..]), root, DEADLINE).unwrap();
        assert!(!is_root || all == everything);
        world.scatter(is_root.then_some(&long[..]), &mut data, root, DEADLINE).unwrap();
        assert_eq!(data, of(root as usize, ranks * block)[me * block..(me + 1) * block]);
        all.fill(2);
        world.all_to_all(&long, &mut all, DEADLINE).unwrap();
        assert_eq!(all, transposed);
        data.copy_from_slice(&mine);
        world.all_reduce(&mut data, Reduce::Sum, DEADLINE).unwrap();
        assert_eq!(data, sums(0));
        data.copy_from_slice(&mine);
        world.all_reduce(&mut data, Reduce::Mean, DEADLINE).unwrap();
        assert!(data.iter().zip(sums(0)).all(|(mean, sum)| *mean == sum / ranks as u64));
        data.fill(3);
        world.reduce(&mine, is_root.then_some(&mut data[..]), Reduce::Max, root, DEADLINE).unwrap();
        assert!(data == if is_root { of(ranks - 1, block) } else { vec![3; block] });
        world.reduce_scatter(&long, &mut data, Reduce::Sum, DEADLINE).unwrap();
        assert_eq!(data, sums(me * block));

        // 16-bit floats are reduced in 32 bits, on each host in the order of ranks and then in the order of hosts, and rounded
        // once: a mean fits where the sum does not.
        let mut halves = vec![f16::from_f32(60_000.0); block];
        world.all_reduce(&mut halves, Reduce::Mean, DEADLINE).unwrap();
        assert!(halves.iter().all(|half| half.to_f32() == f16::from_f32(60_000.0).to_f32()));
        let half = |rank: usize, index: usize| f16::from_f32(0.1 + (rank * 3 + index % 50) as f32 / 7.0);
        let mut halves: Vec<f16> = (0..block).map(|index| half(me, index)).collect();
        world.all_reduce(&mut halves, Reduce::Sum, DEADLINE).unwrap();
        for (index, &sum) in halves.iter().enumerate() {
            let of_host = |host: &Vec<u32>| {
                host.iter().map(|&rank| half(rank as usize, index).to_f32()).reduce(|sum, next| sum + next).unwrap()
            };
            let exact = hosts.iter().map(of_host).reduce(|sum, next| sum + next).unwrap();
            assert_eq!(sum, f16::from_f32(exact), "element {index}");
        }

        // Rank r sends r + i elements to rank i, and so on round the ring.
        let length = |from: usize, to: usize| (from + to) % 4 * block / 2;
        let lengths: Vec<usize> = (0..ranks).map(|to| length(me, to)).collect();
        let expected: Vec<usize> = (0..ranks).map(|from| length(from, me)).collect();
        let sent = vec![me as u32; lengths.iter().sum()];
        let mut received = vec![u32::MAX; expected.iter().sum()];
        world.all_to_all_of((&sent, &lengths), (&mut received, &expected), DEADLINE).unwrap();
        let by_rank = (0..ranks).flat_map(|from| std::iter::repeat_n(from as u32, length(from, me)));
        assert!(received.into_iter().eq(by_rank));

        if ranks > 1 {
            let (next, before) = ((me + 1) % ranks, (me + ranks - 1) % ranks);
            // Open on all before two threads of a rank begin at once.
            world.open_messages(DEADLINE).unwrap();
            thread::scope(|scope| {
                scope.spawn(|| world.send(&mine, next as u32, 5, DEADLINE).unwrap());
                let mut data = vec![0; block];
                world.receive(&mut data, before as u32, 5, DEADLINE).unwrap();
                assert_eq!(data, of(before, block));
            });
        }
    }
    world.barrier(DEADLINE).unwrap();
}

/// Reductions of memory that other ranks read in place: the bits are those of the other way, and nothing is copied.
pub fn symmetric(world: &World, is_shared: bool) {
    const ELEMENTS: usize = 150_000;
    let mut memory = world.symmetric_memory(ELEMENTS * size_of::<f32>(), DEADLINE).unwrap();
    let value = |index: usize| (world.rank() as usize * 31 + index) as f32 / 7.0;
    for (range, reduce) in [0..0, 3..7, 0..ELEMENTS, 1_001..90_000, 5..20_021].into_iter().zip(Reduce::EVERY) {
        let mut expected: Vec<f32> = (0..ELEMENTS).map(value).collect();
        memory.as_mut_slice().unwrap().copy_from_slice(&expected);
        world.all_reduce(&mut expected[range.clone()], reduce, DEADLINE).unwrap();
        let before = world.copies();
        memory.all_reduce::<f32>(range.clone(), reduce, DEADLINE).unwrap();
        let copies = world.copies();
        assert!(memory.as_slice::<f32>().unwrap() == expected, "{range:?}");
        let is_small = range.len() * size_of::<f32>() * world.size() as usize <= 16 << 10;
        let copies_nothing = is_shared && !is_small || world.size() == 1 || range.is_empty();
        assert_eq!(copies == before, copies_nothing, "{range:?}: {copies:?}");
    }
    if is_shared && world.size() > 1 {
        let wrong = ELEMENTS - world.rank() as usize;
        let told = memory.all_reduce::<f32>(0..wrong, Reduce::Sum, DEADLINE);
        assert!(matches!(told, Err(Error::Mismatch { .. })), "{told:?}");
        memory.as_mut_slice().unwrap().fill(1.0f32);
        memory.all_reduce::<f32>(0..ELEMENTS, Reduce::Sum, DEADLINE).unwrap();
        assert_eq!(memory.as_slice::<f32>().unwrap()[ELEMENTS - 1], world.size() as f32);
    }
    let truths = memory.all_reduce_bytes(Dtype::Bool, 0..4, Reduce::Mean, DEADLINE);
    assert!(matches!(truths, Err(Error::Usage { .. })), "{truths:?}");
    let truths = world.all_reduce_bytes(Dtype::Bool, &mut [1, 0], Reduce::Mean, DEADLINE);
    assert!(matches!(truths, Err(Error::Usage { .. })), "{truths:?}");
    let beyond = world.symmetric_memory(usize::MAX, DEADLINE);
    assert!(matches!(beyond, Err(Error::Memory { .. })), "{beyond:?}");
    let lengths = vec![1usize << 62; world.size() as usize];
    let beyond = world.all_to_all_of((&[1u64; 4], &lengths), (&mut [0u64; 4], &lengths), DEADLINE);
    assert!(matches!(beyond, Err(Error::Usage { .. })), "{beyond:?}");
    let beyond = memory.all_reduce::<f32>(0..ELEMENTS + 1, Reduce::Sum, DEADLINE);
    assert!(matches!(beyond, Err(Error::Usage { .. })), "{beyond:?}");
    world.barrier(DEADLINE).unwrap();
    let before = shared_memory();
    let bytes = (8 << 20) + world.rank() as usize;
    // All have read that before a rank makes more.
    world.barrier(DEADLINE).unwrap();
    let told = world.symmetric_memory(bytes, DEADLINE);
    assert!(matches!(told, Err(Error::Mismatch { .. })) || world.size() == 1, "{told:?}");
    drop(told);
    world.barrier(DEADLINE).unwrap();
    assert!(!is_shared || shared_memory() < before + (8 << 20), "a refused memory stays");
}

/// Bytes in the memory files of all worlds of this process.
fn shared_memory() -> u64 {
    let files = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let path = entry.unwrap().path();
        let name = std::fs::read_link(&path).ok()?;
        name.to_string_lossy()
            .contains("memfd:earlybird")
            .then(|| std::fs::metadata(path).map_or(0, |file| file.blocks()))
    });
    files.sum::<u64>() * 512
}
