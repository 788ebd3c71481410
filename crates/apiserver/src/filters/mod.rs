//! What every request or answer passes besides authentication and authorization: limits in flight, compression, logs.
//! Called by `server::pipeline` and `handlers::respond`.

pub mod gzip;
pub mod in_flight;
pub mod request_log;
