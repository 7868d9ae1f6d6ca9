package worktree

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// inline is the maximum size of a bundle or a patch that is a part of the request, in bytes. A larger one is sent
// ahead. git writes the first of these bytes after it has counted all objects, so that it does not pause in an upload.
const inline = 1 << 20

// Cargo is the part of a local repository that has to be sent for a session. Its methods accept a nil Cargo, which has
// nothing.
type Cargo struct {
	top    string     // of the repository
	branch string     // whose commits are sent, beside those of HEAD; "" for none
	depth  int        // of the history; 0 means all
	patch  string     // file with the uncommitted changes; "" for none
	by     api.Author // of the changes
	temp   string     // directory to remove; "" for none
	sent   []string   // uploads
}

// Server is the part of a client that sends files ahead of a session.
type Server interface {
	Upload(ctx context.Context, r io.Reader) (api.FileUpload, error)
	RemoveUpload(ctx context.Context, id string) error
}

// Progress receives how many bytes were sent, and about how many there are.
type Progress func(sent, of int64)

// Close removes temporary files.
func (c *Cargo) Close() {
	if c != nil && c.temp != "" {
		_ = os.RemoveAll(c.temp) // it is temporary
	}
}

// Digest identifies the state of the repository that is sent: the last commit and the uncommitted changes.
func (c *Cargo) Digest(ctx context.Context) (string, error) {
	if c == nil {
		return "", nil
	}
	head, err := gitLine(ctx, c.top, "rev-parse", "HEAD")
	if err != nil {
		return "", err
	}
	sum := sha256.New()
	fmt.Fprintln(sum, head, c.branch)
	if c.patch != "" {
		patch, err := os.Open(c.patch)
		if err == nil {
			defer patch.Close()
			_, err = io.Copy(sum, patch)
		}
		if err != nil {
			return "", errors.Explainf(err, errors.Unavailable, "cannot read the uncommitted changes: %v", err)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// Top returns the top directory of the repository; "" without one.
func (c *Cargo) Top() string {
	if c == nil {
		return ""
	}
	return c.top
}

// Remove removes the uploads from the server, once the sessions have begun. Uploads that it cannot remove expire.
func (c *Cargo) Remove(ctx context.Context, server Server) {
	if c == nil {
		return
	}
	for _, id := range c.sent {
		_ = server.RemoveUpload(context.WithoutCancel(ctx), id)
	}
	c.sent = nil
}

// temporary returns the directory for temporary files.
func (c *Cargo) temporary() (dir string, err error) {
	if c.temp == "" {
		if c.temp, err = os.MkdirTemp("", "harvest-carry-"); err != nil {
			return "", errors.Explainf(err, errors.Unavailable, "cannot create a temporary directory: %v", err)
		}
	}
	return c.temp, nil
}

// Send sends the commits and the uncommitted changes, large ones ahead of the request, and completes the request. If it
// fails, no upload is left.
func (c *Cargo) Send(ctx context.Context, server Server, req *api.SessionRequest, progress Progress) error {
	if c == nil {
		return nil
	}
	err := c.sendCommits(ctx, server, req, progress)
	if err == nil && c.patch != "" {
		err = c.sendPatch(ctx, server, req, progress)
	}
	if err != nil {
		c.Remove(ctx, server)
	}
	return err
}

// sendCommits sends the commits of HEAD and of the branch. A shallow repository lacks the parents of some commits,
// which the server has to know.
func (c *Cargo) sendCommits(ctx context.Context, server Server, req *api.SessionRequest,
	progress Progress) error {
	from, refs := c.top, []string{"HEAD"}
	if c.branch != "" {
		refs = append(refs, "refs/heads/"+c.branch)
	}
	if c.depth > 0 {
		var err error
		if from, err = c.shorten(ctx); err != nil {
			return err
		}
	}
	shallow, err := gitLine(ctx, from, "rev-parse", "--path-format=absolute", "--git-path", "shallow")
	if err != nil {
		return err
	}
	if req.Shallow, err = os.ReadFile(shallow); err != nil && !errors.IsNotExist(err) {
		return errors.Explainf(err, errors.Invalid, "cannot read %s: %v", shallow, err)
	}
	// Loose objects are sent without a search for deltas, which takes longer than to send them. Existing deltas stay.
	bundle, err := stream(ctx, from, append([]string{"-c", "pack.window=0", "bundle", "create", "--quiet", "-"},
		refs...)...)
	if err != nil {
		return err
	}
	defer bundle.close()
	req.Bundle, req.BundleID, err = c.put(ctx, server, bundle, sizeOf(ctx, from), progress)
	if err == nil && req.BundleID == "" && len(req.Bundle) == 0 {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%s: git wrote an empty bundle", c.top),
			"check the repository with git fsck, or give its address with --repo")
	}
	return err
}

// shorten returns a temporary copy of the repository with a part of its history.
func (c *Cargo) shorten(ctx context.Context) (string, error) {
	dir, err := c.temporary()
	if err != nil {
		return "", err
	}
	to := filepath.Join(dir, "shallow.git")
	args := []string{"clone", "--quiet", "--bare", "--no-tags", "--single-branch", "--depth=" + strconv.Itoa(c.depth)}
	if c.branch != "" {
		args = append(args, "--branch="+c.branch)
	}
	_, err = git(ctx, c.top, append(args, "--", "file://"+c.top, to)...)
	return to, err
}

func (c *Cargo) sendPatch(ctx context.Context, server Server, req *api.SessionRequest,
	progress Progress) error {
	f, err := os.Open(c.patch)
	if err != nil {
		return errors.Explainf(err, errors.Unavailable, "cannot read the uncommitted changes: %v", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return errors.Explainf(err, errors.Unavailable, "cannot read the uncommitted changes: %v", err)
	}
	req.Uncommitted = &api.Uncommitted{Author: c.by}
	req.Uncommitted.Patch, req.Uncommitted.PatchID, err = c.put(ctx, server, f, info.Size(), progress)
	return err
}

// put returns the content of r if it is small. Otherwise it uploads the content and returns the ID.
func (c *Cargo) put(ctx context.Context, server Server, r io.Reader, size int64,
	progress Progress) (content []byte, id string, err error) {
	begin := bufio.NewReaderSize(r, inline+1)
	content, err = begin.Peek(inline + 1)
	if err == io.EOF {
		return bytes.Clone(content), "", nil
	}
	if err != nil {
		return nil, "", err
	}
	up, err := server.Upload(ctx, &counted{Reader: begin, of: size, tell: progress})
	if err != nil {
		return nil, "", err
	}
	c.sent = append(c.sent, up.ID)
	return nil, up.ID, nil
}

// counted reports how much of a Reader was read.
type counted struct {
	io.Reader
	n, of int64
	tell  Progress
}

func (c *counted) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n += int64(n)
	c.tell(c.n, max(c.n, c.of))
	return n, err
}

// sizeOf returns about how large the bundle of a repository is, in bytes: the size of its objects.
func sizeOf(ctx context.Context, dir string) (bytes int64) {
	out, err := git(ctx, dir, "count-objects", "-v")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(out)) {
		if key, value, _ := strings.Cut(strings.TrimSpace(line), ": "); key == "size" || key == "size-pack" {
			n, _ := strconv.ParseInt(value, 10, 64) // 0 if git prints something else
			bytes += n << 10
		}
	}
	return bytes
}

// running is a program whose output is read while it runs.
type running struct {
	cmd    *exec.Cmd
	out    io.ReadCloser
	stderr bytes.Buffer
	ended  bool
}

// stream starts git. Its output fails to be read if git fails. The caller closes the result.
func stream(ctx context.Context, dir string, args ...string) (*running, error) {
	r := &running{cmd: exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)}
	r.cmd.Stderr = &r.stderr
	var err error
	if r.out, err = r.cmd.StdoutPipe(); err == nil {
		err = r.cmd.Start()
	}
	if err != nil {
		return nil, errors.Explainf(err, errors.Unavailable, "cannot start git: %v", err)
	}
	return r, nil
}

func (r *running) Read(p []byte) (int, error) {
	n, err := r.out.Read(p)
	if err == io.EOF && !r.ended {
		r.ended = true
		if e := r.cmd.Wait(); e != nil {
			err = errors.Explainf(e, errors.Invalid, "git cannot read the repository: %s",
				strings.TrimSpace(r.stderr.String()))
		}
	}
	return n, err
}

// close ends git, if it is running.
func (r *running) close() {
	if !r.ended {
		r.ended = true
		_ = r.cmd.Process.Kill() // it may have ended
		_ = r.cmd.Wait()
	}
}
