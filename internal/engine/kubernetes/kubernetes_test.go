package kubernetes_test

import (
	"context"
	"net"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/kubetest"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
)

// closing closes the volumes with the engine.
type closing struct {
	*kubernetes.Engine
	volumes *volume.Local
}

func (c closing) Close() error { return errors.Join(c.Engine.Close(), c.volumes.Close()) }

// open opens the engine on a data directory.
func open(t *testing.T, dir string, change ...func(*kubernetes.Options)) closing {
	t.Helper()
	kubeconfig := kubetest.Cluster(t)
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		t.Fatal(err)
	}
	opts := kubernetes.Options{Dir: filepath.Join(dir, "kubernetes"), Images: imagetest.Library(t), Volumes: volumes,
		S3: func(ctx context.Context) (*embedded.Server, error) {
			return embedded.Start(ctx, embedded.Options{Dir: filepath.Join(dir, "s3"),
				Executable: testenv.EmbeddedS3(t)})
		},
		Kubeconfig: kubeconfig, Namespace: "default", Reach: kubernetes.Direct,
		Pod: kubernetes.Pod{Image: kubetest.Image, PullPolicy: "Never", CPU: 0.05, Memory: 64 << 20, Hosts: machine(t),
			Cache: kubetest.Cache()}}
	for _, f := range change {
		f(&opts)
	}
	e, err := kubernetes.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	return closing{e, volumes}
}

// machine returns the addresses of this machine, which is the node. Kubernetes knows one of them only.
func machine(t *testing.T) (all []netip.Addr) {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			all = append(all, p.Addr().Unmap())
		}
	}
	return all
}

// mission: A1, A3, A4, A11, 1.8, 1.9, 8.3
func TestConformance(t *testing.T) {
	kubetest.Cluster(t)
	enginetest.Run(t, enginetest.Harness{
		Open: func(t *testing.T, dir string) engine.Engine { return open(t, dir) },
	})
}
