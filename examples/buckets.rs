//! Gradients that are handed in as they become ready, under a rule that does not wait for the slow rank: all buckets of a
//! round have the contributions of the first one.
//!
//! `cargo run --release --example buckets`

use std::thread;
use std::time::Duration;

use earlybird::{Buckets, Config, Fire, Scale, World};

const DEADLINE: Duration = Duration::from_secs(10);

/// The lengths of three layers' gradients, from the last layer to the first.
const LAYERS: [usize; 3] = [10, 2_000, 500];

fn train(world: &World) -> earlybird::Result<()> {
    let gradients = world.allreduce::<f32>(&LAYERS).fire(Fire::quorum(3)).scale(Scale::Contributions);
    let mut mean = gradients.buckets(Buckets::Bytes(4_000)).build()?;
    let slow = world.rank() == 3;
    let mut model: Vec<Vec<f32>> = LAYERS.iter().map(|&length| vec![1.0; length]).collect();
    for step in 0..if slow { 3 } else { 8 } {
        mean.begin()?;
        for layer in 0..LAYERS.len() {
            // Computes the layer's gradient, while the layers before it move.
            thread::sleep(Duration::from_millis(if slow { 15 } else { 4 }));
            mean.tensor(layer)?.fill(0.01);
            mean.filled(layer)?;
        }
        // A rank that was late catches up on what it has missed.
        for outcome in mean.wait(DEADLINE)?.iter() {
            for (layer, weights) in model.iter_mut().enumerate() {
                let gradient = outcome.tensor(layer).unwrap_or_default();
                weights.iter_mut().zip(gradient).for_each(|(weight, gradient)| *weight -= gradient);
            }
            let ranks: Vec<_> = outcome.cut().contributions().map(|it| it.rank).collect();
            println!("rank {} step {step}: round {} of ranks {ranks:?}", world.rank(), outcome.round());
        }
    }
    mean.finish(DEADLINE)
}

fn main() -> earlybird::Result<()> {
    let worlds = World::in_this_process(4, &Config::from_env()?)?;
    thread::scope(|scope| {
        let ranks: Vec<_> = worlds.into_iter().map(|world| scope.spawn(move || train(&world))).collect();
        ranks.into_iter().try_for_each(|rank| match rank.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        })
    })
}
