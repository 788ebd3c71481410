//! nftables over netlink: the numbers of its messages and notifications.
//! Used by `cni` to list rules, by `proxy` to change elements and to hear of deletions.

/// The netfilter subsystem; also what a batch is for.
pub const NFNL_SUBSYS_NFTABLES: u16 = 10;
pub const NFNL_MSG_BATCH_BEGIN: u16 = 0x10;
pub const NFNL_MSG_BATCH_END: u16 = 0x11;
/// The group of its notifications, counted from 1.
pub const NFNLGRP_NFTABLES: u32 = 7;
/// The address family of `inet` tables.
pub const NFPROTO_INET: u8 = 1;

pub const NFT_MSG_NEWCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 3;
pub const NFT_MSG_GETCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 4;
pub const NFT_MSG_GETRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 7;
pub const NFT_MSG_NEWSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 12;
pub const NFT_MSG_DELSETELEM: u16 = NFNL_SUBSYS_NFTABLES << 8 | 14;
const NFT_MSG_DELTABLE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 2;
const NFT_MSG_DELCHAIN: u16 = NFNL_SUBSYS_NFTABLES << 8 | 5;
const NFT_MSG_DELRULE: u16 = NFNL_SUBSYS_NFTABLES << 8 | 8;
const NFT_MSG_DELSET: u16 = NFNL_SUBSYS_NFTABLES << 8 | 11;

/// The attribute with the table's name, the same in every message about tables, chains, rules, sets and elements.
pub const NFTA_TABLE: u16 = 1;

/// Whether a notification is of something deleted. Flushing is deleting.
pub fn is_deletion(kind: u16) -> bool {
    let deletions = [NFT_MSG_DELTABLE, NFT_MSG_DELCHAIN, NFT_MSG_DELRULE, NFT_MSG_DELSET, NFT_MSG_DELSETELEM];
    deletions.contains(&kind)
}
