package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/podimage"
)

const (
	kubectlSide = "kubectl" // run and exec, of a program of a few instructions

	podImage   = "harvest.test/pod:1"
	pauseImage = "harvest.test/pause:1" // of the cluster

	kubernetesCold = "cold: a pod, until 42"
	kubernetesWarm = "warm, with its own environment, secret and volume: until 42"
	kubernetesExec = "exec true"
)

// cluster is the Kubernetes cluster that make test-kubernetes starts: tools/kubernetes cluster.
type cluster struct {
	programs, containerd string
	count                int
}

// benchKubernetes measures sandboxes in pods beside pods that kubectl runs, in one cluster.
func benchKubernetes(ctx context.Context, l *lab, r *recorder) error {
	c := &cluster{programs: os.Getenv("HARVEST_TEST_KUBERNETES"), containerd: os.Getenv("HARVEST_TEST_CONTAINERD")}
	if c.programs == "" || c.containerd == "" {
		r.missing(kubectlSide, errors.Errorf("there is no cluster: run it below bin/tools/kubernetes cluster"))
		return nil
	}
	if err := c.load(ctx); err != nil {
		return err
	}
	settings := []string{"HARVEST_ENGINE=kubernetes", "HARVEST_KUBERNETES_KUBECONFIG=" + os.Getenv("KUBECONFIG"),
		"HARVEST_KUBERNETES_NAMESPACE=default", "HARVEST_KUBERNETES_IMAGE=" + podImage,
		"HARVEST_KUBERNETES_PULL_POLICY=Never", "HARVEST_KUBERNETES_REACH=direct",
		"HARVEST_KUBERNETES_CPU=0.05", "HARVEST_KUBERNETES_MEMORY=64MiB",
		"HARVEST_KUBERNETES_CACHE=" + filepath.Join(filepath.Dir(c.containerd), "images")}
	for _, part := range []struct {
		name, pool string
		work       func(ctx context.Context, r *recorder, c *cluster, d *daemon) error
	}{{"cold", "0", coldPods}, {"warm", "1", warmPods}} {
		data, err := l.dataDir("kubernetes-" + part.name)
		if err != nil {
			return err
		}
		err = withServer(ctx, l, data, func(d *daemon) error { return part.work(ctx, r, c, d) },
			append(settings, "HARVEST_POOL="+part.pool)...)
		if err != nil {
			return err
		}
	}
	return nil
}

// load adds the image of pods to the cluster's node.
func (c *cluster) load(ctx context.Context) error {
	var archive bytes.Buffer
	if err := podimage.Write(&archive, podImage, podimage.Programs(filepath.Join("bin", "programs"))); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(c.programs, "ctr"), "--address", c.containerd, "--namespace",
		"k8s.io", "images", "import", "-")
	cmd.Stdin = &archive
	out, err := cmd.CombinedOutput()
	return errors.Wrapf(err, "add the image of pods: %.300s", out)
}

// kubectl runs kubectl, and returns its output.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, filepath.Join(c.programs, "kubectl"), args...).CombinedOutput()
	return strings.TrimSpace(string(out)), errors.Wrapf(err, "kubectl %s: %.300s", args[0], out)
}

// run is kubectl's way to a new pod that prints 42.
func (c *cluster) run(name string) side {
	return side{kubectlSide, func(ctx context.Context) (sample, error) {
		c.count++
		pod := fmt.Sprintf("bench-%d", c.count)
		var out string
		took, err := timed(name, func() (err error) {
			out, err = c.kubectl(ctx, "run", pod, "--quiet", "--rm", "--stdin", "--restart=Never",
				"--image="+pauseImage, "--image-pull-policy=Never", "--env=WHO=me", "--", "echo", "42")
			return err
		})
		if err == nil && !strings.Contains(out, "42") {
			err = errors.Errorf("kubectl printed %.100q", out)
		}
		return took, err
	}}
}

// answer creates a sandbox whose command prints 42. It returns the time until then, and whether the sandbox was warm.
func answer(ctx context.Context, d *daemon, name string, req api.SandboxRequest, script string) (s sample, warm bool,
	err error) {
	var id string
	s, err = timed(name, func() error {
		sb, err := d.CreateSandbox(ctx, req, nil)
		if err != nil {
			return err
		}
		id, warm = sb.ID, sb.Warm
		res, err := d.Exec(ctx, id, api.ExecRequest{Args: []string{"sh", "-ec", script}})
		if err == nil && (res.ReturnCode != 0 || strings.TrimSpace(res.Stdout) != "42") {
			err = errors.Errorf("the command ended with %d and printed %.100q", res.ReturnCode, res.Stdout+res.Stderr)
		}
		return err
	})
	if id != "" {
		err = errors.Join(err, d.DestroySandbox(context.WithoutCancel(ctx), id))
	}
	return s, warm, err
}

func coldPods(ctx context.Context, r *recorder, c *cluster, d *daemon) (err error) {
	cold, run := r.measure(kubernetesCold, "ms"), r.measure(kubernetesExec, "ms")
	cold.Aim, run.Aim = &Aim{Peer: kubectlSide, AtMost: 1.2}, &Aim{Peer: kubectlSide, AtMost: 0.3}
	err = r.turns(ctx, r.count(1, 10), []*Measure{cold}, side{harvest, func(ctx context.Context) (sample, error) {
		s, _, err := answer(ctx, d, cold.Name, api.SandboxRequest{}, "echo 42")
		return s, err
	}}, c.run(cold.Name))
	if err != nil {
		return err
	}
	sb, err := d.CreateSandbox(ctx, api.SandboxRequest{}, nil)
	if err != nil {
		return err
	}
	if _, err := c.kubectl(ctx, "run", "bench-exec", "--image="+pauseImage, "--image-pull-policy=Never"); err != nil {
		return err
	}
	defer func() {
		_, e := c.kubectl(context.WithoutCancel(ctx), "delete", "pod", "bench-exec", "--wait=false")
		err = errors.Join(err, e)
	}()
	if _, err := c.kubectl(ctx, "wait", "--for=condition=Ready", "pod/bench-exec", "--timeout=60s"); err != nil {
		return err
	}
	return r.turns(ctx, r.count(2, 30), []*Measure{run},
		side{harvest, commandLines(r.lab.opts.harvest, map[string][]string{
			run.Name: {"--data", d.data, "sandbox", "exec", sb.ID, "--", "true"}})},
		side{kubectlSide, func(ctx context.Context) (sample, error) {
			return timed(run.Name, func() error {
				_, err := c.kubectl(ctx, "exec", "bench-exec", "--", "/pause", "echo", "true")
				return err
			})
		}})
}

func warmPods(ctx context.Context, r *recorder, c *cluster, d *daemon) error {
	warm := r.measure(kubernetesWarm, "ms")
	warm.Aim = &Aim{Peer: kubectlSide, AtMost: 0.1}
	if err := whole(ctx, r.lab.opts.harvest, "--data", d.data, "secret", "set", "mine", "TOKEN=4"); err != nil {
		return err
	}
	req := api.SandboxRequest{Env: map[string]string{"UNIT": "2"}, Secrets: []string{"mine"},
		Volumes: []api.Mount{{Name: "data", Path: "/data"}}}
	return r.turns(ctx, r.count(1, 10), []*Measure{warm}, side{harvest, func(ctx context.Context) (sample, error) {
		for {
			s, booted, err := answer(ctx, d, warm.Name, req, `echo $TOKEN$UNIT > /data/answer; cat /data/answer`)
			if err != nil || booted {
				return s, err
			}
			if err := pause(ctx, time.Second); err != nil { // the pool has no pod yet
				return nil, err
			}
		}
	}}, c.run(warm.Name))
}
