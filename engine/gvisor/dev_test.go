package gvisor

import (
	"bytes"
	"context"
	"fmt"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/volume"
	"io"
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(); os.Exit(m.Run()) }

type im struct{ image.Builder }

func (im) Find(ctx context.Context, r string) (image.Image, error) {
	return image.Image{ID: "img_base"}, nil
}
func (im) Use(id, who string) (func(), error) { return func() {}, nil }
func (im) Root(image.Image) string            { return "/tmp/exp/root.erofs" }

type vo struct{ volume.Provider }

func (vo) Use(n, who string) (func(), error) { return func() {}, nil }
func (vo) Path(n string) string              { return "/tmp/exp/vol/" + n }
func TestDev(t *testing.T) {
	ctx := t.Context()
	dir, _ := os.MkdirTemp("", "hv")
	defer os.RemoveAll(dir)
	e, err := Open(ctx, Options{Dir: dir, Images: im{}, Volumes: vo{}})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	t.Log(e.Capabilities())
	run := func(s engine.Sandbox, in io.Reader, args ...string) {
		t0 := time.Now()
		var o, eo bytes.Buffer
		p, err := s.Start(ctx, engine.Command{Args: args, Stdout: &o, Stderr: &eo, Stdin: in})
		if err != nil {
			t.Error(err)
			return
		}
		x, err := p.Wait(ctx)
		out := o.String()
		if len(out) > 50000 {
			out = fmt.Sprint(len(out))
		}
		t.Log(time.Since(t0), args[0], x, err, out, eo.String())
	}
	for i := range 3 {
		t0 := time.Now()
		s, err := e.Create(ctx, engine.Spec{ID: fmt.Sprint("sbx", i), Image: "base", Limits: engine.Limits{CPU: 0, Memory: 512 << 20, Disk: 1 << 30, Processes: 100, Files: 1000}, Stage: func(n string, d time.Duration) { t.Log(n, d) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Log("create", time.Since(t0))
		run(s, nil, "python3", "-c", "print(1)")
		t.Log("TTI", time.Since(t0))
		run(s, nil, "true")
		run(s, nil, "true")
		run(s, nil, "true")
		if i == 0 {
			run(s, nil, "sh", "-c", "hostname; id; df -h / /tmp; mount; nproc; ps aux; env; cat /proc/meminfo | head -2; dmesg | head -3; ls -la /dev /; ulimit -n")
			run(s, bytes.NewReader(bytes.Repeat([]byte("x"), 1<<20)), "wc", "-c")
			run(s, nil, "nosuch")
			run(s, nil, "head", "-c", "100000000", "/dev/zero")
		}
		t0 = time.Now()
		if err := s.Destroy(ctx); err != nil {
			t.Fatal(err)
		}
		t.Log("destroy", time.Since(t0))
	}
}
