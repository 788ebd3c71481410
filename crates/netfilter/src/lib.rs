//! The kernel's netfilter messages: one codec, one socket and one reading of tracked flows.
//! Used by `cni` (which blocks) and by `proxy` (which does not). Constants have the kernel's own names.
//! Nothing here decides what a rule or a flow should be.

pub mod conntrack;
mod message;
pub mod nftables;
mod socket;

pub use message::{
    Message, Messages, NETFILTER_HEADER_BYTES, NLA_F_NESTED, NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_REQUEST,
    NLMSG_DONE, NLMSG_ERROR, acknowledged, attributes, messages, netfilter_header, put_attribute, put_message,
};
pub use socket::{NetfilterSocket, open, request};
