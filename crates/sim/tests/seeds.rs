//! Random workloads under random faults. Every failure prints its seed; that seed then goes into `KNOWN`.

/// Seeds that once found a bug.
const KNOWN: &[u64] = &[19, 44, 46, 50, 62, 64, 151, 156, 157, 237, 249, 5513];
/// How many others are tried. `make sim SEEDS=1000` tries more.
const TRIED: u64 = 60;
/// As many of these, in which there are devices to ask for.
const WITH_DEVICES: std::ops::Range<u64> = 100_000..100_010;
/// And of these, in which there are autoscalers.
const WITH_AUTOSCALERS: std::ops::Range<u64> = 200_000..200_006;

fn play(seeds: &[u64]) -> Vec<sim::Outcome> {
    sim::play_all(env!("CARGO_BIN_EXE_sim").as_ref(), seeds).unwrap()
}

#[test]
fn everything_comes_true() {
    let known = KNOWN.iter().copied().filter(|seed| *seed >= TRIED);
    let seeds: Vec<u64> = (0..TRIED).chain(known).chain(WITH_DEVICES).chain(WITH_AUTOSCALERS).collect();
    let failed: Vec<_> = play(&seeds).into_iter().filter(|o| !o.holds).collect();
    failed.iter().for_each(|o| eprintln!("{}", o.text));
    assert!(failed.is_empty(), "these seeds fail: {:?}", failed.iter().map(|o| o.seed).collect::<Vec<_>>());
}

#[test]
fn a_seed_plays_the_same_alone_and_among_others() {
    let (among, alone) = (play(&[1, 2, 3, 4]), play(&[2]));
    assert_eq!(among[1].text, alone[0].text);
    assert_ne!(among[1].text, among[0].text);
}
