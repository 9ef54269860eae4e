//! What others run beside the chart: cert-manager, and the kinds of the Prometheus operator.

use super::Node;
use super::commands::Layout;
use crate::objects::apply_file;
use crate::process::Process;

impl Node {
    /// Applies the definitions of the kinds of cert-manager and of the Prometheus operator, as those ship them.
    ///
    /// # Errors
    /// If the API server refuses one.
    pub async fn define_kinds_of_others(&self) -> anyhow::Result<()> {
        let definitions = self.programs.path("crds.yaml")?;
        apply_file(&self.client, &definitions, "others").await.map(drop)
    }

    /// Starts cert-manager's own controllers, which need its kinds, and may do everything. They make certificates by self-signed issuers and by
    /// authorities in Secrets. [`Node::reboot`] does not start them again.
    ///
    /// # Errors
    /// If they cannot be started.
    pub fn start_cert_manager(&self) -> anyhow::Result<Process> {
        let layout = Layout {
            programs: self.programs,
            directory: self.directory(),
        };
        Process::start_new(&self.supervisor, "cert-manager", layout.cert_manager()?)
    }
}
