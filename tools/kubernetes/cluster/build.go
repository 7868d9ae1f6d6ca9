package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// program is a program of a cluster.
type program struct {
	name, pkg string
	ours      bool // of the module tools
}

// programs are built from the module tools/kubernetes/programs, which has their versions, except ours. runc is
// the machine's: it needs libseccomp.
var programs = []program{
	{"containerd", "github.com/containerd/containerd/v2/cmd/containerd", false},
	{"containerd-shim-runc-v2", "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2", false},
	{"ctr", "github.com/containerd/containerd/v2/cmd/ctr", false},
	{"bridge", "github.com/containernetworking/plugins/plugins/main/bridge", false},
	{"host-local", "github.com/containernetworking/plugins/plugins/ipam/host-local", false},
	{"loopback", "github.com/containernetworking/plugins/plugins/main/loopback", false},
	{"etcd", "go.etcd.io/etcd/server/v3", false},
	{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", false},
	{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", false},
	{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", false},
	{"kubectl", "k8s.io/kubernetes/cmd/kubectl", false},
	{"kubelet", "k8s.io/kubernetes/cmd/kubelet", false},
	{"pause", "github.com/RelevanceAI/harvest/tools/kubernetes/pause", true},
}

// kubernetes is the module that has Kubernetes' version.
const kubernetes = "k8s.io/kubernetes"

// Build builds the programs of a cluster from module, and returns their directory below cache. It keeps the programs
// that are there already, so that an interrupted build continues. Concurrent builds wait for one another.
func Build(ctx context.Context, module, cache string, log io.Writer) (string, error) {
	sum, err := sumOf(filepath.Join(module, "go.mod"), filepath.Join(module, "go.sum"))
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "kubernetes-"+sum)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", errors.Wrapf(err, "make the directory of the programs")
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", errors.Wrapf(err, "lock the directory of the programs")
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil {
		return "", errors.Wrapf(err, "lock the directory of the programs")
	}
	flags, err := linkerFlags(ctx, module)
	if err != nil {
		return "", err
	}
	for _, p := range programs {
		if _, err := os.Stat(filepath.Join(dir, p.name)); err == nil {
			continue
		}
		if _, err := io.WriteString(log, "building "+p.name+"\n"); err != nil {
			return "", errors.Wrapf(err, "write the log")
		}
		if err := p.build(ctx, module, dir, flags); err != nil {
			return "", err
		}
	}
	return dir, nil
}

// build builds the program under a temporary name, because a build may be killed.
func (p program) build(ctx context.Context, module, dir, flags string) error {
	path := filepath.Join(dir, p.name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", flags, "-o", path+".new", p.pkg)
	cmd.Dir = module
	if p.ours {
		cmd.Dir = filepath.Dir(module)
	}
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		return errors.Wrapf(err, "build %s: %s", p.name, out)
	}
	return errors.Wrapf(os.Rename(path+".new", path), "build %s", p.name)
}

// linkerFlags are the flags of the linker. The components of a cluster compare their versions.
func linkerFlags(ctx context.Context, module string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Version}}", kubernetes)
	cmd.Dir = module
	out, err := cmd.Output()
	if err != nil {
		return "", errors.Wrapf(err, "find the version of Kubernetes")
	}
	version := strings.TrimSpace(string(out))
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	if len(parts) < 3 {
		return "", errors.Errorf("%q is not a version of Kubernetes", version)
	}
	const x = " -X k8s.io/component-base/version.git"
	return "-s -w" + x + "Version=" + version + x + "Major=" + parts[0] + x + "Minor=" + parts[1], nil
}

// sumOf returns the first digits of the SHA-256 digest of files.
func sumOf(paths ...string) (string, error) {
	h := sha256.New()
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			return "", errors.Wrapf(err, "read the versions of the programs")
		}
		_, _ = h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}
