package main

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/errors"
)

// daemon is a separate server process: the program that users run.
type daemon struct {
	*client.Client // over TCP, with a key
	cmd            *exec.Cmd
	data           string
	url, key       string
}

// dataDir makes a data directory of that name for a server, which shares the library of images.
func (l *lab) dataDir(name string) (string, error) {
	data := filepath.Join(l.dir, name)
	err := errors.Join(os.Mkdir(data, 0o700), os.Symlink(l.opts.images, filepath.Join(data, "images")))
	return data, errors.Wrapf(err, "make a data directory")
}

// serve starts the program as a server of the data directory, with settings such as "HARVEST_POOL=0".
func serve(ctx context.Context, program, data string, settings ...string) (_ *daemon, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, errors.Wrapf(err, "find a port")
	}
	address := l.Addr().String()
	l.Close()
	d := &daemon{data: data, url: "http://" + address}
	log, err := os.OpenFile(filepath.Join(data, "bench.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, errors.Wrapf(err, "open the server's log")
	}
	defer log.Close()
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), program, "up", "--data", data, "--listen",
		address, "--quiet")
	d.cmd.Env = append(os.Environ(), append([]string{"HARVEST_REFRESH=false", "HARVEST_SERVER_RATE_LIMIT=0",
		"HARVEST_QUOTAS_SANDBOXES=0", "HARVEST_LOG_LEVEL=warn"}, settings...)...)
	d.cmd.Stdout, d.cmd.Stderr, d.cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Setsid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, errors.Wrapf(err, "start %s", program)
	}
	local := client.New(data)
	defer local.Close()
	for end := time.Now().Add(time.Minute); ; {
		if _, err = local.Server(ctx); err == nil {
			break
		}
		if time.Now().After(end) || pause(ctx, 50*time.Millisecond) != nil {
			return nil, errors.Join(errors.Wrapf(err, "wait for the server"), d.stop())
		}
	}
	out, err := exec.CommandContext(ctx, program, "--data", data, "key", "create",
		"bench-"+strconv.Itoa(d.cmd.Process.Pid), "--role", "admin", "--quiet").Output()
	if err != nil {
		return nil, errors.Join(errors.Wrapf(err, "make a key"), d.stop())
	}
	d.key = strings.TrimSpace(string(out))
	if d.Client, err = client.At(d.url, d.key); err != nil {
		return nil, errors.Join(err, d.stop())
	}
	return d, nil
}

// stop ends the server. Its sandboxes keep running.
func (d *daemon) stop() error {
	if d.Client != nil {
		d.Client.Close()
	}
	if err := d.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return errors.Wrapf(err, "end the server")
	}
	timer := time.AfterFunc(30*time.Second, func() { _ = d.cmd.Process.Kill() })
	defer timer.Stop()
	return errors.Wrapf(d.cmd.Wait(), "the end of the server")
}

// state is the resource usage of a server.
type state struct {
	Goroutines, Files, RSS, Disk, Processes float64 // RSS and Disk in MiB; Processes are keepers
}

// measured reads the resource usage of the server.
func (d *daemon) measured(ctx context.Context) (s state, err error) {
	pid := d.cmd.Process.Pid
	rss, err := memoryOf(pid, "status", "VmRSS")
	if err != nil {
		return s, err
	}
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return s, errors.Wrapf(err, "count open files")
	}
	if s.Goroutines, err = d.metric(ctx, "go_goroutines"); err != nil {
		return s, err
	}
	keepers := family(func(cmdline string) bool { return strings.HasPrefix(cmdline, "harvest-keeper\x00"+d.data) })
	s.RSS, s.Files, s.Disk, s.Processes = float64(rss)/(1<<20), float64(len(files)), float64(diskOf(d.data))/(1<<20),
		float64(len(keepers))
	return s, nil
}

// metric returns one of the server's metrics.
func (d *daemon) metric(ctx context.Context, name string) (float64, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, d.url+"/metrics", nil)
	if err != nil {
		return 0, errors.Wrapf(err, "ask for the metrics")
	}
	req.Header.Set("Authorization", "Bearer "+d.key)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, errors.Wrapf(err, "ask for the metrics")
	}
	defer resp.Body.Close()
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		if text, ok := strings.CutPrefix(lines.Text(), name+" "); ok {
			return strconv.ParseFloat(text, 64)
		}
	}
	return 0, errors.Errorf("there is no metric %s", name)
}

// diskOf returns the bytes of the files below dir. It does not count images shared through a symbolic link.
func diskOf(dir string) int64 {
	total := int64(0)
	_ = filepath.WalkDir(dir, func(_ string, e os.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if info, err := e.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				total += st.Blocks * 512
			}
		}
		return nil
	})
	return total
}
