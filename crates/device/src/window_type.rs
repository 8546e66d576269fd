//! Types of memory windows.

/// `enum ibv_mw_type`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// `IBV_MW_TYPE_1`
    One,
    /// `IBV_MW_TYPE_2`, of which this device has 2B
    Two,
}
