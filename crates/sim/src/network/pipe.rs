//! A connection as bytes: two in-memory pipes and a wire between them that delays, splits, breaks off and loses.
//! Made by `http` for each connection it dials.
//! Bytes arrive in order or the connection ends; what was sent into a cut link never arrives later.

use env::Env;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, ReadHalf, WriteHalf, duplex, split};

use super::{Network, PING_TIMEOUT, faults::happens};

const BUFFER_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 16 << 10;
const DELAY_MAX: std::time::Duration = std::time::Duration::from_millis(50);

/// The link that a connection uses.
#[derive(Clone)]
pub struct Link {
    pub network: Network,
    pub client: String,
    pub server: usize,
    /// Of the network, which outlives both ends.
    pub env: Env,
}

/// The client's end and the server's.
pub fn open(link: Link) -> (DuplexStream, DuplexStream) {
    let (client, near) = duplex(BUFFER_BYTES);
    let (far, server) = duplex(BUFFER_BYTES);
    let ((near_read, near_write), (far_read, far_write)) = (split(near), split(far));
    let env = link.env.clone();
    env.spawn(async move {
        // When one direction ends, so does the connection.
        tokio::select! {
            biased;
            () = carry(&link, near_read, far_write) => {}
            () = carry(&link, far_read, near_write) => {}
        }
    });
    (client, server)
}

async fn carry(link: &Link, mut from: ReadHalf<DuplexStream>, mut to: WriteHalf<DuplexStream>) {
    let mut buffer = vec![0; CHUNK_BYTES];
    loop {
        let Ok(read @ 1..) = from.read(&mut buffer).await else { return };
        if link.network.is_cut(&link.client, link.server) {
            // Lost. Both ends go on waiting until pings tell, or the path is back and does not know the connection.
            link.env.timeout(PING_TIMEOUT, link.network.mended(&link.client, link.server)).await;
            return;
        }
        let faults = link.network.injector.get();
        let breaks = happens(&link.env, faults.connection_broken);
        let sent = if breaks { (link.env.random_u64() % read as u64) as usize } else { read };
        // A frame may arrive in two pieces.
        let first = if happens(&link.env, faults.slow) { sent / 2 } else { sent };
        for piece in [&buffer[..first], &buffer[first..sent]] {
            if piece.is_empty() {
                continue;
            }
            if to.write_all(piece).await.is_err() || to.flush().await.is_err() {
                return;
            }
            if first != sent {
                link.env.sleep(DELAY_MAX.mul_f64(link.env.random_fraction())).await;
            }
        }
        if breaks {
            return;
        }
    }
}
