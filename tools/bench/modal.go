package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"time"

	modal "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// httpAPI is the side of Harvest's own API, the peer of Modal's protocol.
const httpAPI = "HTTP API"

// benchModal measures exec through Modal's Go SDK and through the HTTP API, in the same sandbox.
func benchModal(ctx context.Context, l *lab, r *recorder) error {
	data, err := l.dataDir("modal")
	if err != nil {
		return err
	}
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Wrapf(err, "find a port")
	}
	address := port.Addr().String()
	port.Close()
	return withServer(ctx, l, data, func(d *daemon) error { return r.withSDK(ctx, l, d, data) }, "HARVEST_POOL=0",
		"HARVEST_MODAL_LISTEN="+address)
}

func (r *recorder) withSDK(ctx context.Context, l *lab, d *daemon, data string) error {
	sdk, err := sdkOf(ctx, l.opts.harvest, data)
	if err != nil {
		return err
	}
	defer sdk.Close()
	app, err := sdk.Apps.FromName(ctx, "bench", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		return errors.Wrapf(err, "make an app")
	}
	sb, err := sdk.Sandboxes.Create(ctx, app, sdk.Images.FromRegistry("base", nil),
		&modal.SandboxCreateParams{Command: idle})
	if err != nil {
		return errors.Wrapf(err, "create a sandbox with Modal's SDK")
	}
	defer func() { _ = sb.Detach() }()
	all, _, err := d.Sandboxes(ctx, api.SandboxFilter{})
	if err != nil {
		return err
	}
	if len(all) != 1 {
		return errors.Errorf("%d sandboxes", len(all))
	}
	return measureModal(ctx, r, sb, d, all[0].ID)
}

// sdkOf returns Modal's SDK for a Harvest server. The SDK takes the server's address only from the environment.
func sdkOf(ctx context.Context, program, data string) (*modal.Client, error) {
	out, err := exec.CommandContext(ctx, program, "--data", data, "modal", "env").Output()
	if err != nil {
		return nil, errors.Wrapf(err, "make a key for Modal's SDK")
	}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		if err := os.Setenv(name, value); err != nil {
			return nil, errors.Wrapf(err, "set %s", name)
		}
		defer os.Unsetenv(name)
	}
	sdk, err := modal.NewClient()
	return sdk, errors.Wrapf(err, "Modal's SDK")
}

func measureModal(ctx context.Context, r *recorder, sb *modal.Sandbox, d *daemon, id string) error {
	m := r.measure("exec true, until it has ended", "ms")
	m.Aim = &Aim{Peer: httpAPI, AtMost: 1.5}
	err := r.turns(ctx, r.count(10, 100), []*Measure{m}, side{harvest, func(ctx context.Context) (sample, error) {
		return timed(m.Name, func() error {
			p, err := sb.Exec(ctx, []string{"true"}, nil)
			if err != nil {
				return err
			}
			code, err := p.Wait(ctx, nil)
			if err == nil && code != 0 {
				err = errors.Errorf("true ended with %d", code)
			}
			return err
		})
	}}, side{httpAPI, func(ctx context.Context) (sample, error) {
		return timed(m.Name, func() error {
			_, err := d.Exec(ctx, id, api.ExecRequest{Args: []string{"true"}})
			return err
		})
	}})
	if err != nil {
		return err
	}
	// The file is created before, as in P5: creating 100 MB with a pipe inside takes longer than sending them.
	const file = "/var/tmp/output"
	p, err := sb.Exec(ctx, []string{"sh", "-c", fmt.Sprintf("yes 0123456789abcdef | head -c %d > %s",
		outputBytes, file)}, nil)
	if err != nil {
		return err
	}
	if code, err := p.Wait(ctx, nil); err != nil || code != 0 {
		return errors.Errorf("make a file to print: %d, %v", code, err)
	}
	o := r.measure(speed, "MB/s")
	o.Aim = &Aim{AtLeast: 200}
	return r.turns(ctx, r.count(1, 5), []*Measure{o}, side{harvest, func(ctx context.Context) (sample, error) {
		begin := time.Now()
		p, err := sb.Exec(ctx, []string{"cat", file}, nil)
		if err != nil {
			return nil, err
		}
		var n counter
		if _, err := io.Copy(&n, p.Stdout); err != nil {
			return nil, err
		}
		if _, err := p.Wait(ctx, nil); err != nil {
			return nil, err
		}
		return n.rate(time.Since(begin))
	}})
}
