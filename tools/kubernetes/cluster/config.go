package cluster

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
)

// The addresses of a cluster. There is one cluster on a machine.
const (
	Node = "node1" // the name of the only node

	nodeBridge     = "hvk1" // without ports
	nodeAddress    = "10.245.0.1"
	podBridge      = "hvk0"
	podNetwork     = "10.244.0.0/24"
	services       = "10.96.0.0/16"
	serviceAddress = "10.96.0.1"
)

const containerdConfig = `version = 3
root = "%[1]s/containerd/root"
state = "%[1]s/containerd/state"
disabled_plugins = ["io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs",
  "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.nri.v1.nri"]
[grpc]
address = "%[1]s/containerd.sock"
[plugins."io.containerd.internal.v1.opt"]
path = "%[1]s/containerd/opt"
[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "%[2]s"
[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
disable_apparmor = true
netns_mounts_under_state_dir = true
[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["%[3]s"]
conf_dir = "%[1]s/cni"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "runc"
Root = "%[1]s/containerd/runc"
`

// networkConfig has no masquerading, because that needs rules of iptables: pods reach the node and one another.
const networkConfig = `{"cniVersion": "1.0.0", "name": "harvest", "plugins": [{"type": "bridge", "bridge": %q,
  "isGateway": true, "ipMasq": false, "ipam": {"type": "host-local", "dataDir": %q,
  "ranges": [[{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
`

// kubeletConfig suits machines with cgroups of version 1 and without CAP_SYS_RESOURCE. The kubelet ignores some errors
// of the kernel's settings with KubeletInUserNamespace.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
address: %[2]s
port: %[3]d
readOnlyPort: 0
healthzPort: 0
tlsCertFile: %[1]s/keys/kubelet.crt
tlsPrivateKeyFile: %[1]s/keys/kubelet.key
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: %[1]s/keys/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupRoot: /%[4]s
cgroupsPerQOS: true
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
oomScoreAdj: 0
containerRuntimeEndpoint: unix://%[1]s/containerd.sock
evictionHard: {memory.available: "100Mi", nodefs.available: "1%%", imagefs.available: "1%%", nodefs.inodesFree: "1%%"}
featureGates: {KubeletInUserNamespace: true}
resolvConf: /etc/resolv.conf
podLogsDir: %[1]s/logs
imageGCHighThresholdPercent: 100
makeIPTablesUtilChains: false
`

// configure writes the configuration files of all components.
func (c *Cluster) configure() error {
	for name, text := range map[string]string{
		"containerd.toml":      fmt.Sprintf(containerdConfig, c.Dir, Pause, c.programs),
		"cni/harvest.conflist": fmt.Sprintf(networkConfig, podBridge, c.path("cni-addresses"), podNetwork),
		"kubelet.yaml":         fmt.Sprintf(kubeletConfig, c.Dir, nodeAddress, c.kubelet, group),
	} {
		path := c.path(name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return errors.Wrapf(err, "make the directory of %s", name)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			return errors.Wrapf(err, "write %s", name)
		}
	}
	return c.identities()
}

// component is a process of a cluster.
type component struct {
	name string
	args []string
}

// components are the processes in the order in which they start.
func (c *Cluster) components() []component {
	etcd, peer := "http://"+c.etcd, "http://"+c.etcdPeer
	keys, cert := c.path("keys"), func(name string) string { return c.path("keys/" + name) }
	return []component{
		{"etcd", []string{"--data-dir", c.path("etcd"), "--listen-client-urls", etcd, "--advertise-client-urls", etcd,
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default=" + peer,
			"--unsafe-no-fsync"}},
		{"kube-apiserver", []string{"--etcd-servers=" + etcd, "--bind-address=127.0.0.1",
			"--secure-port=" + port(c.api), "--tls-cert-file=" + cert("apiserver.crt"),
			"--tls-private-key-file=" + cert("apiserver.key"),
			"--client-ca-file=" + cert("ca.crt"), "--authorization-mode=Node,RBAC",
			"--enable-admission-plugins=NodeRestriction", "--service-cluster-ip-range=" + services,
			"--service-account-key-file=" + cert("accounts.key"),
			"--service-account-signing-key-file=" + cert("accounts.key"),
			"--service-account-issuer=https://kubernetes.default.svc", "--advertise-address=127.0.0.1",
			"--endpoint-reconciler-type=none", "--kubelet-preferred-address-types=InternalIP",
			"--kubelet-client-certificate=" + cert("admin.crt"), "--kubelet-client-key=" + cert("admin.key"),
			"--kubelet-certificate-authority=" + cert("ca.crt"), "--allow-privileged=true"}},
		{"kube-controller-manager", []string{"--kubeconfig=" + cert("controllers.kubeconfig"),
			"--service-account-private-key-file=" + cert("accounts.key"), "--root-ca-file=" + cert("ca.crt"),
			"--use-service-account-credentials=true", "--leader-elect=false", "--bind-address=127.0.0.1",
			"--secure-port=" + port(c.controllers), "--cert-dir=" + keys}},
		{"kube-scheduler", []string{"--kubeconfig=" + cert("scheduler.kubeconfig"), "--leader-elect=false",
			"--bind-address=127.0.0.1", "--secure-port=" + port(c.scheduler), "--cert-dir=" + keys}},
		{"containerd", []string{"--config", c.path("containerd.toml")}},
		{"kubelet", []string{"--kubeconfig=" + cert("node.kubeconfig"), "--config=" + c.path("kubelet.yaml"),
			"--root-dir=" + c.path("kubelet"), "--cert-dir=" + keys, "--hostname-override=" + Node,
			"--node-ip=" + nodeAddress, "-v=2"}},
	}
}
