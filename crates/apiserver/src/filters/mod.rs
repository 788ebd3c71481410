//! What every request or answer passes besides authentication and authorization: limits in flight, compression.
//! Called by `server::pipeline` and `handlers::respond`.

pub mod gzip;
pub mod in_flight;
