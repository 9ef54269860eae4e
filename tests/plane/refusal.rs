//! What a refused client and everybody else sees.

use deployer_guard_testkit::objects::create_pod;

use crate::common::{OPENSHIFT_NAME, Rollout, namespace, run};

#[test]
fn the_second_deployer_of_a_config_is_refused_with_the_holder_and_the_way_out() {
    run(async {
        let stage = namespace("refusal").await?;
        let client = stage.plane.client(0);
        let (first, second) = (Rollout::new("refusal", "cfg", 1), Rollout::new("refusal", "cfg", 2));
        let first_uid = first.begin(&client, "New").await?;
        let second_uid = second.begin(&client, "New").await?;

        let admitted = create_pod(&client, "refusal", &first.pod(&first_uid)).await?;
        assert_eq!(admitted.code, 201, "{}", admitted.message());
        let refused = create_pod(&stage.plane.client(1), "refusal", &second.pod(&second_uid)).await?;
        assert_eq!(refused.code, 403);
        let status = refused.result.unwrap_err();
        assert_eq!(status.reason, "Forbidden");
        assert_eq!(
            status.message,
            format!(
                "admission webhook \"{OPENSHIFT_NAME}.policies.deployer-guard.io\" denied the request: DeployerPolicy \
                 \"{OPENSHIFT_NAME}\" refuses pod \"cfg-2-deploy\" for \"cfg\" (DeployerActive): deployer pod \"cfg-1-deploy\" (generation \"cfg-1\") is active, and \
                 only one deployer may work at once. Wait until it has finished, or end it: kubectl -n refusal delete pod cfg-1-deploy"
            )
        );
        let details = status.details.expect("details");
        assert_eq!(details.causes[0].reason, "DeployerActive");
        assert_eq!(details.retry_after_seconds, 0);
        Ok(())
    });
}
