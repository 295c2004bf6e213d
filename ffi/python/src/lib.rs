//! earlybird for Python: what `python/earlybird` stands on. Everything here blocks without the interpreter's lock.
//!
//! Memory is lent by the buffer protocol, and each loan is checked: a contribution until it is handed in, an outcome until it is
//! released. A handle is not released while an array of one of its outcomes exists.

mod allreduce;
mod buckets;
mod collectives;
mod errors;
mod handle;
mod interrupt;
mod log;
mod memory;
mod symmetric;
mod world;

use pyo3::prelude::*;

#[pymodule]
fn _earlybird(module: &Bound<'_, PyModule>) -> PyResult<()> {
    interrupt::set_up(module.py());
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(pyo3::wrap_pyfunction!(interrupt::wait_until_end, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(interrupt::end_waits, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(log::start_log, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(log::next_message, module)?)?;
    module.add_function(pyo3::wrap_pyfunction!(log::end_log, module)?)?;
    module.add_class::<world::World>()?;
    module.add_class::<allreduce::Allreduce>()?;
    module.add_class::<buckets::BucketedAllreduce>()?;
    module.add_class::<memory::Memory>()?;
    module.add_class::<symmetric::Symmetric>()?;
    module.add_wrapped(pyo3::wrap_pymodule!(collectives::collectives))
}
