//! Which pods stand behind a service: EndpointSlices, and the older Endpoints.
//! `selection` reads services and pods, `slice_plan` and `subsets` are the cores, the other files carry out.
//! A service without a selector is left alone; someone else writes its endpoints.

mod endpoint_slice;
mod legacy;
mod mirroring;
mod selection;
mod slice_control;
mod slice_metrics;
mod slice_plan;
mod subsets;
mod topology_hints;

pub use endpoint_slice::make as make_endpoint_slices;
pub use legacy::make as make_endpoints;
pub use mirroring::make as make_mirroring;
pub use slice_plan::SERVICE_NAME;
