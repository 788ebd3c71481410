//! The kernel's netfilter messages: one codec, one socket, one reading of tracked flows, and how nftables are written.
//! Used by `cni` (which blocks), and by `proxy` and `network_policy` (which do not). Constants have the kernel's own names.
//! Nothing here decides what a rule or a flow should be.

pub mod conntrack;
mod message;
mod nft_command;
mod nft_monitor;
pub mod nftables;
mod packet;
pub mod set_elements;
mod socket;
mod table_repair;

pub use message::{
    Message, Messages, NETFILTER_HEADER_BYTES, NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, acknowledged, attributes, messages, netfilter_header, put_attribute, put_message,
};
pub use nft_command::{Nft, NftError};
pub use nft_monitor::{NftEvent, NftMonitor};
pub use packet::{Family, Protocol};
pub use socket::{NetfilterSocket, open, request};
pub use table_repair::TableRepair;
