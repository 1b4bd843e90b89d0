// SPDX-License-Identifier: MIT OR Apache-2.0
//! For origins of tests that are another one but in some of their methods.

/// For `impl Origin`: these methods call those of the origin in the field.
macro_rules! origin_passes_on {
    ($field:tt: $($method:ident),+) => { $(crate::passing::origin_passes_on!(@$method $field);)+ };
    (@size_bytes $field:tt) => {
        fn size_bytes(&self) -> u64 {
            self.$field.size_bytes()
        }
    };
    (@logical_block $field:tt) => {
        fn logical_block(&self) -> u32 {
            self.$field.logical_block()
        }
    };
    (@identity $field:tt) => {
        fn identity(&self) -> String {
            self.$field.identity()
        }
    };
    (@info $field:tt) => {
        fn info(&self) -> forebay::OriginInfo {
            self.$field.info()
        }
    };
    (@read_at $field:tt) => {
        fn read_at(&self, buf: &mut [u8], offset: u64) -> std::io::Result<()> {
            self.$field.read_at(buf, offset)
        }
    };
    (@write_at $field:tt) => {
        fn write_at(&self, data: &[u8], offset: u64) -> std::io::Result<()> {
            self.$field.write_at(data, offset)
        }
    };
    (@flush $field:tt) => {
        fn flush(&self) -> std::io::Result<()> {
            self.$field.flush()
        }
    };
    (@discard $field:tt) => {
        fn discard(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.$field.discard(offset, len)
        }
    };
    (@write_zeroes $field:tt) => {
        fn write_zeroes(&self, offset: u64, len: u64) -> std::io::Result<()> {
            self.$field.write_zeroes(offset, len)
        }
    };
}
pub(crate) use origin_passes_on;
