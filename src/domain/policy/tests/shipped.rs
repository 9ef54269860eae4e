//! Every policy that ships compiles.

use super::*;

#[test]
fn every_policy_that_ships_compiles() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/policies");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("policies") {
        let path = entry.expect("an entry").path();
        let text = std::fs::read_to_string(&path).expect("a file");
        let policy: DeployerPolicy = serde_saphyr::from_str(&text).expect("a policy");
        Policy::compile(&policy).unwrap_or_else(|errors| panic!("{}: {errors:?}", path.display()));
        assert_eq!(
            path.file_stem().and_then(|stem| stem.to_str()),
            Some(policy.metadata.name.unwrap().as_str())
        );
        count += 1;
    }
    assert!(count >= 2);
}
