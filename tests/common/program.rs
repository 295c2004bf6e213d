//! Programs from a seed: some collectives of any kind, some steps with all of them, and ranks that leave.
//!
//! They know only what the public functions promise, and nothing of how they are made.
#![allow(dead_code, unreachable_pub, reason = "every test uses a part of it")]

use std::fmt::Debug;
use std::sync::Mutex;
use std::time::Duration;

use earlybird::{
    Allreduce, BucketOutcomes, BucketedAllreduce, Buckets, Error, Executor, Fire, Grace, Group, Reduce, Result, World,
};
use rand::RngExt;
use rand::seq::SliceRandom;
use rand_xoshiro::Xoshiro256PlusPlus;

const LENGTHS: [usize; 4] = [3, 0, 70, 1];

/// How long a rank waits in one collective that it leaves, while it leaves others, too.
const MOMENT: Duration = Duration::from_millis(1);

/// Steps after which buckets that follow from measurements may have changed.
const UNTIL_PLANNED: u64 = 11;

pub type Random = Xoshiro256PlusPlus;

#[derive(Clone, Copy, Debug)]
enum Kind {
    Buckets(Fire, Buckets),
    Whole(Fire),
    Averages(Fire, Group),
}

impl Kind {
    /// Whether a rank that is late waits for an arrival that others make in their next step: then all cannot meet before.
    fn makes_late_ranks_wait(&self) -> bool {
        match self {
            Kind::Buckets(_, Buckets::Measured) | Kind::Averages(_, Group::Arrivals(_)) => true,
            Kind::Buckets(fire, _) | Kind::Whole(fire) | Kind::Averages(fire, _) => fire.to_string().contains("full="),
        }
    }
}

/// How all ranks go through the steps.
#[derive(Clone, Copy, Debug)]
enum Order {
    /// They wait in each collective before they arrive in the next one.
    OneByOne,
    /// They arrive in all, and then wait in all.
    Together,
}

#[derive(Clone, Debug)]
pub struct Program {
    kinds: Vec<Kind>,
    order: Order,
    /// Steps of each rank.
    pub steps: Vec<u64>,
    /// A synchronous collective follows each step, if all ranks make the same steps.
    meets: bool,
    executor: Executor,
    grace: Grace,
    depth: u32,
    /// The number, of 8 calls that wait, whose deadline is 0 at first.
    pub hurries: u32,
}

fn pick<T: Copy>(random: &mut Random, from: &[T]) -> T {
    from[random.random_range(0..from.len())]
}

impl Program {
    /// A program of `ranks` ranks.
    pub fn drawn(random: &mut Random, ranks: u32) -> Self {
        let kinds = Self::kinds(random, ranks);
        let plans = |kind: &Kind| matches!(kind, Kind::Buckets(_, Buckets::Measured));
        let most = pick(random, &[2, 4, 8, 14]) + if kinds.iter().any(plans) { UNTIL_PLANNED } else { 0 };
        let leaves_early = random.random_range(0..4) > 0;
        let fewer = |_| if leaves_early && random.random() { random.random_range(0..=most) } else { most };
        let steps: Vec<u64> = (0..ranks).map(fewer).collect();
        let meets = steps.iter().all(|&steps| steps == most) && !kinds.iter().any(Kind::makes_late_ranks_wait);
        let meets = meets && random.random();
        let order = if random.random() { Order::OneByOne } else { Order::Together };
        let executor = pick(random, &[Executor::Caller, Executor::Thread]);
        let grace = pick(random, &[Grace::NONE, Grace::Auto]);
        let depth = pick(random, &[1, 2, 3, 8]);
        Program { kinds, order, steps, meets, executor, grace, depth, hurries: pick(random, &[0, 0, 1, 4]) }
    }

    /// One collective of any kind, or several that do not wait for each other: a program in which a rank waits in one for
    /// a rank that waits for it in another has only itself to blame.
    fn kinds(random: &mut Random, ranks: u32) -> Vec<Kind> {
        let group = pick(random, &[Group::World, Group::Butterfly(2)]);
        if random.random_range(0..6) == 0 {
            let fire = pick(random, &[Fire::ALL, Fire::SOLO]);
            let kinds = [Kind::Buckets(fire, Buckets::Each), Kind::Whole(fire), Kind::Averages(fire, group)];
            return (0..random.random_range(2..4)).map(|_| pick(random, &kinds)).collect();
        }
        let (quorum, majority) = (random.random_range(1..=ranks), random.random_range(0..9));
        let partial = [Fire::SOLO, Fire::SOLO, Fire::quorum(quorum), Fire::majority(majority)];
        let fire = if random.random_range(0..8) == 0 { Fire::ALL } else { pick(random, &partial) };
        let full = !fire.is_synchronous() && random.random_range(0..3) == 0;
        let fire = if full { fire.full_every(pick(random, &[2, 3])) } else { fire };
        vec![match random.random_range(0..16) {
            0 => Kind::Whole(fire),
            1 => Kind::Averages(fire, group),
            2 => Kind::Averages(Fire::ALL, Group::Arrivals(2)),
            3 | 4 => Kind::Buckets(fire, Buckets::Measured),
            5..10 => Kind::Buckets(fire, Buckets::Bytes(300)),
            _ => Kind::Buckets(fire, Buckets::Each),
        }]
    }
}

/// A collective of any kind.
enum Handle {
    Buckets(Box<BucketedAllreduce<f64>>),
    Whole(Allreduce<f64>),
    Model(Allreduce<f64>),
}

/// A rank that plays programs.
pub struct Player<'a> {
    pub random: Random,
    /// As in the program.
    pub hurries: u32,
    pub patience: Duration,
    /// Called when a call has returned.
    pub returned: &'a dyn Fn(),
    /// The call that it makes now.
    pub does: &'a Mutex<String>,
}

impl Player<'_> {
    /// Makes a call. One that waits may have too short a deadline at first.
    fn call<R>(&mut self, what: &dyn Debug, mut call: impl FnMut(Duration) -> Result<R>) -> R {
        *self.does.lock().unwrap() = format!("{what:?}");
        if self.random.random_range(0..8) < self.hurries {
            match call(Duration::ZERO) {
                Err(Error::Timeout { .. }) => {}
                ended => return self.end(what, ended),
            }
            (self.returned)();
        }
        let ended = call(self.patience);
        self.end(what, ended)
    }

    fn end<R>(&self, what: &dyn Debug, ended: Result<R>) -> R {
        let value = ended.unwrap_or_else(|error| panic!("{what:?}: {error}"));
        (self.returned)();
        value
    }

    /// Plays a program.
    pub fn play(&mut self, program: &Program, world: &World) {
        let mut handles: Vec<Handle> = Vec::new();
        for kind in &program.kinds {
            let hurries = std::mem::take(&mut self.hurries);
            handles.push(self.call(&("build", kind), |_| build(world, *kind, program)));
            self.hurries = hurries;
        }
        for step in 0..program.steps[world.rank() as usize] {
            match program.order {
                Order::OneByOne => {
                    for (index, handle) in handles.iter_mut().enumerate() {
                        self.arrive((step, index), handle);
                        self.wait((step, index), handle);
                    }
                }
                Order::Together => {
                    for (index, handle) in handles.iter_mut().enumerate() {
                        self.arrive((step, index), handle);
                    }
                    for (index, handle) in handles.iter_mut().enumerate() {
                        self.wait((step, index), handle);
                    }
                }
            }
            if program.meets {
                let mut data = [1u64];
                let hurries = std::mem::take(&mut self.hurries);
                self.call(&("all_reduce", step), |within| world.all_reduce(&mut data, Reduce::Sum, within));
                self.hurries = hurries;
                assert_eq!(data, [u64::from(world.size())]);
            }
        }
        // Other ranks may wait for this one in any of several collectives, so it leaves them by turns.
        let several = handles.len() > 1;
        while several && !handles.is_empty() {
            handles.retain_mut(|handle| match finish(handle, MOMENT) {
                Err(Error::Timeout { .. }) => true,
                ended => {
                    self.end(&"finish by turns", ended);
                    false
                }
            });
        }
        for (index, handle) in handles.iter_mut().enumerate() {
            self.call(&("finish", index), |within| finish(handle, within));
        }
    }

    fn arrive(&mut self, at: (u64, usize), handle: &mut Handle) {
        let hurries = std::mem::take(&mut self.hurries);
        match handle {
            Handle::Whole(sum) | Handle::Model(sum) => {
                sum.contribution().unwrap().fill(1.0);
                self.call(&("arrive", at), |_| sum.arrive());
            }
            Handle::Buckets(sum) => {
                self.call(&("begin", at), |_| sum.begin());
                let mut tensors: Vec<usize> = (0..LENGTHS.len()).collect();
                tensors.shuffle(&mut self.random);
                for tensor in tensors {
                    sum.tensor(tensor).unwrap().fill(1.0);
                    self.call(&("filled", at, tensor), |_| sum.filled(tensor));
                }
            }
        }
        self.hurries = hurries;
    }

    fn wait(&mut self, at: (u64, usize), handle: &mut Handle) {
        match handle {
            Handle::Model(sum) => self.call(&("wait", at), |within| sum.wait(within).map(drop)),
            Handle::Whole(sum) => self.call(&("wait", at), |within| {
                for outcome in sum.wait(within)?.iter() {
                    let all = outcome.cut().contributions().count() as f64;
                    assert!(outcome.iter().all(|&x| x == all), "{:?}", outcome.cut());
                }
                Ok(())
            }),
            Handle::Buckets(sum) => {
                let by_bucket = self.random.random::<bool>();
                if by_bucket {
                    let buckets = sum.buckets().len();
                    for bucket in 0..buckets {
                        self.call(&("wait_bucket", at, bucket), |within| sum.wait_bucket(bucket, within).map(drop));
                    }
                    return;
                }
                self.call(&("wait", at), |within| sum.wait(within).map(|outcomes| check(&outcomes)));
            }
        }
    }
}

/// Each tensor of an outcome has all contributions of its cut.
fn check(outcomes: &BucketOutcomes<'_, f64>) {
    for outcome in outcomes.iter() {
        let all = outcome.cut().contributions().count() as f64;
        for (tensor, length) in LENGTHS.into_iter().enumerate() {
            let found = outcome.tensor(tensor).unwrap();
            assert!(found.len() == length && found.iter().all(|&x| x == all), "{:?}", outcome.cut());
        }
    }
}

fn finish(handle: &mut Handle, within: Duration) -> Result<()> {
    match handle {
        Handle::Buckets(sum) => {
            while let Some(outcomes) = sum.leave(within)? {
                check(&outcomes);
            }
            Ok(())
        }
        Handle::Whole(sum) | Handle::Model(sum) => sum.finish(within),
    }
}

fn build(world: &World, kind: Kind, program: &Program) -> Result<Handle> {
    match kind {
        Kind::Buckets(fire, buckets) => {
            let of_all = world
                .allreduce::<f64>(&LENGTHS)
                .fire(fire)
                .grace(program.grace)
                .depth(program.depth)
                .executor(program.executor);
            of_all.buckets(buckets).build().map(Box::new).map(Handle::Buckets)
        }
        Kind::Whole(fire) => {
            let sum = world
                .allreduce::<f64>(&[5])
                .fire(fire)
                .grace(program.grace)
                .depth(program.depth)
                .executor(program.executor);
            sum.build().map(Handle::Whole)
        }
        Kind::Averages(fire, group) => {
            let sum = world
                .allreduce::<f64>(&[4])
                .fire(fire)
                .group(group)
                .memory(&[0.0; 4])
                .grace(program.grace)
                .depth(program.depth);
            sum.executor(program.executor).build().map(Handle::Model)
        }
    }
}
