//! Handles other clients of CUPTI, and contains the switch that turns launch callbacks off while no window is open.

pub(super) mod callback_switch;
pub(super) mod client_detector;
pub(super) mod other_clients;
