//! Element types and the reduction of several sources into one.
//!
//! The order is canonical: sources in the order given, left to right. So the same cut gives the same bits on every rank
//! and for any division into segments. 16-bit floats are reduced in 32 bits and rounded once, at the end. Short
//! integers are reduced in 32 bits, of which the lowest are kept: they wrap.

mod kernel;
mod number;

pub(crate) use kernel::{
    Arena, BoardSource, DefaultFloats, Gathered, Goal, Place, Source, narrow, partial, scaled_sum, sum, widen,
};

use std::fmt;

pub use half::{bf16, f16};

use crate::named::named;

pub use crate::named::UnknownName;

/// The operation that combines two elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Reduce {
    /// Sum; integers wrap.
    #[default]
    Sum,
    /// Minimum. Of two values that compare equal (0 and -0) the first; NaN propagates.
    Min,
    /// Maximum. Of two values that compare equal (0 and -0) the first; NaN propagates.
    Max,
    /// Product; integers wrap.
    Prod,
    /// The sum divided by the number of ranks. 16-bit floats are rounded after the division, and integers towards 0.
    /// Only for [synchronous collectives](crate::World#synchronous-collectives), to which all ranks contribute. The
    /// mean of a partial round is a sum with a [`Scale`](crate::Scale).
    Mean,
}

named!(
    Reduce, "reduction", "sum, min, max, prod, mean",
    "sum" => Sum, "min" => Min, "max" => Max, "prod" => Prod, "mean" => Mean
);

/// The type of the elements of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Dtype {
    /// 32-bit IEEE 754.
    F32,
    /// 64-bit IEEE 754.
    F64,
    /// 16-bit IEEE 754; reduced in 32 bits and rounded once.
    F16,
    /// The upper half of a 32-bit IEEE 754; reduced in 32 bits and rounded once.
    Bf16,
    /// 32-bit, two's complement, wrapping.
    I32,
    /// 64-bit, two's complement, wrapping.
    I64,
    /// 32-bit, unsigned, wrapping.
    U32,
    /// 64-bit, unsigned, wrapping.
    U64,
    /// 8-bit, two's complement, wrapping.
    I8,
    /// 8-bit, unsigned, wrapping.
    U8,
    /// 16-bit, two's complement, wrapping.
    I16,
    /// A byte that is 0 or 1. A sum or maximum is 1 if any element is 1; a product or minimum is 1 if all are.
    Bool,
}

named!(
    Dtype, "element type", "f32, f64, f16, bf16, i32, i64, u32, u64, i8, u8, i16, bool",
    "f32" => F32, "f64" => F64, "f16" => F16, "bf16" => Bf16, "i32" => I32, "i64" => I64, "u32" => U32, "u64" => U64,
    "i8" => I8, "u8" => U8, "i16" => I16, "bool" => Bool
);

impl Reduce {
    /// All reductions.
    pub const EVERY: [Reduce; 5] = [Reduce::Sum, Reduce::Min, Reduce::Max, Reduce::Prod, Reduce::Mean];
}

impl Dtype {
    /// All element types.
    pub const EVERY: [Dtype; 12] = [
        Dtype::F32,
        Dtype::F64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::I32,
        Dtype::I64,
        Dtype::U32,
        Dtype::U64,
        Dtype::I8,
        Dtype::U8,
        Dtype::I16,
        Dtype::Bool,
    ];

    /// Returns the size of an element in bytes.
    #[must_use]
    pub fn size(self) -> usize {
        match self {
            Dtype::I8 | Dtype::U8 | Dtype::Bool => 1,
            Dtype::F16 | Dtype::Bf16 | Dtype::I16 => 2,
            Dtype::F32 | Dtype::I32 | Dtype::U32 => 4,
            Dtype::F64 | Dtype::I64 | Dtype::U64 => 8,
        }
    }

    /// Returns the size of an element in bytes while it is being reduced.
    pub(crate) fn wide_size(self) -> usize {
        self.size().max(4)
    }

    /// Returns whether the type is a floating-point type, so that its elements can be divided.
    #[must_use]
    pub fn is_float(self) -> bool {
        matches!(self, Dtype::F32 | Dtype::F64 | Dtype::F16 | Dtype::Bf16)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// The type as which the memory of a collective is lent: the elements, or their bytes (`u8`) if the element type is
/// known only at run time.
pub trait Item: sealed::Sealed + bytemuck::Pod + Send + Sync + fmt::Debug + PartialEq + 'static {}

/// An element type. The trait is sealed: the wire format and the kernels fix the set of types.
pub trait Element: Item {
    /// The element type as a value.
    const DTYPE: Dtype;
}

// `u8` is both an item and an element: as an element its bytes are the elements.
macro_rules! elements {
    ($($type:ty => $dtype:ident),*) => {
        $(
            impl sealed::Sealed for $type {}
            impl Item for $type {}
            impl Element for $type {
                const DTYPE: Dtype = Dtype::$dtype;
            }
        )*
    };
}

elements!(
    f32 => F32, f64 => F64, f16 => F16, bf16 => Bf16, i32 => I32, i64 => I64, u32 => U32, u64 => U64, i8 => I8, u8 => U8,
    i16 => I16
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for dtype in Dtype::EVERY {
            assert_eq!(dtype.to_string().parse::<Dtype>(), Ok(dtype));
        }
        for text in ["sum", "min", "max", "prod", "mean"] {
            assert_eq!(text.parse::<Reduce>().unwrap().to_string(), text);
        }
        assert_eq!(
            "f8".parse::<Dtype>().unwrap_err().to_string(),
            "unknown element type \"f8\"; use one of f32, f64, f16, bf16, i32, i64, u32, u64, i8, u8, i16, bool"
        );
    }
}
