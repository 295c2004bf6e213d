//! Element types and the reduction of many sources into one.
//!
//! The order is canonical: sources in the order given, left to right, so the same cut gives the
//! same bits wherever and in whatever pieces it is reduced.

mod kernel;

pub(crate) use kernel::combine;

use std::fmt;
use std::str::FromStr;

/// The type of the elements of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit IEEE 754.
    F32,
    /// 64-bit IEEE 754.
    F64,
    /// 64-bit, two's complement, wrapping.
    I64,
    /// 64-bit, unsigned, wrapping.
    U64,
}

impl Dtype {
    /// Bytes of an element.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Dtype::F32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }

    /// Whether it has fractions, so that it can be divided.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F64)
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::I64 => "i64",
            Dtype::U64 => "u64",
        })
    }
}

impl FromStr for Dtype {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "f32" => Ok(Dtype::F32),
            "f64" => Ok(Dtype::F64),
            "i64" => Ok(Dtype::I64),
            "u64" => Ok(Dtype::U64),
            _ => Err(format!("unknown element type {text:?}; use f32, f64, i64 or u64")),
        }
    }
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for f32 {}
    impl Sealed for f64 {}
    impl Sealed for i64 {}
    impl Sealed for u64 {}
}

/// An element type. Sealed: the set is fixed by the wire format and the kernels.
pub trait Element: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + 'static {
    /// Its name in plans and on the command line.
    const DTYPE: Dtype;
}

impl Element for f32 {
    const DTYPE: Dtype = Dtype::F32;
}
impl Element for f64 {
    const DTYPE: Dtype = Dtype::F64;
}
impl Element for i64 {
    const DTYPE: Dtype = Dtype::I64;
}
impl Element for u64 {
    const DTYPE: Dtype = Dtype::U64;
}
