//! Nothing grows without a limit: a channel has one, or a reason why what is in it can't grow.

use crate::sources::{all, check};

const ALLOWED: &[(&str, &str)] = &[];

#[test]
fn channels_have_limits() {
    let files = all();
    let breaking = files.iter().filter(|file| {
        !file.is_test()
            && file.code().any(|(_, line)| line.contains("unbounded_channel") || line.contains("mpsc::unbounded"))
    });
    check("a channel has a limit", breaking.map(|file| file.path.clone()), ALLOWED);
}
