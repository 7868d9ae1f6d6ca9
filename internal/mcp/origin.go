package mcp

import (
	"context"
	"crypto/rand"
	"io"
	"os"
	"path"
	"strings"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// empty is the name of the directory of environments without a repository, and the argument that asks for one.
const (
	empty   = "project"
	nothing = "none"
)

// origin is what an environment begins with.
type origin struct {
	name  string // of its directory
	from  string // directory or address; "" for none
	cargo *Cargo // nil for an address
	req   api.SessionRequest
	notes []string
}

func (o *origin) close() {
	if o.cargo != nil {
		o.cargo.Close()
	}
}

// described names the origin in a sentence.
func (o *origin) described() string {
	if o.from == "" {
		return ""
	}
	return " of " + o.from
}

// origin finds what a new environment begins with.
func (s environmentTools) origin(ctx context.Context, in createIn) (*origin, error) {
	o := &origin{name: empty, req: api.SessionRequest{Branch: in.Branch}}
	if err := git.CheckBranch(in.Branch); err != nil {
		return nil, err
	}
	if err := git.CheckBranch("harvest/" + in.Name); in.Name != "" && err != nil {
		return nil, err
	}
	switch {
	case in.Repository == nothing || in.Repository == "" && s.Local == nil:
		return o, nil
	case strings.Contains(in.Repository, ":"):
		return o, o.clone(in.Repository)
	case s.Local == nil:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "%q: this server has no access to directories of "+
			"the user",
			in.Repository), "give the address of the repository, such as https://github.com/owner/name, or none")
	}
	var err error
	if o.cargo, err = s.Local.Carry(ctx, in.Repository, in.Committed, &o.req); err != nil {
		return nil, err
	}
	if o.cargo == nil && o.req.Repo != "" {
		return o, o.clone(o.req.Repo)
	}
	if o.cargo == nil {
		return o, nil
	}
	o.from, o.notes = o.cargo.Top, o.cargo.Notes
	if name := git.DirName(path.Base(o.cargo.Top)); name != "" {
		o.name = name
	}
	return o, nil
}

// clone makes an address the origin.
func (o *origin) clone(address string) error {
	parsed, err := git.ParseAddress(address)
	if err != nil {
		return err
	}
	o.from, o.req.Repo = address, address
	if parsed.Name() != "" {
		o.name = parsed.Name()
	}
	return nil
}

// sent is the directory for files that are sent to an environment.
const sent = "/tmp/.harvest-sent"

// begin prepares the working directory of a new environment.
func (s environmentTools) begin(ctx context.Context, at *place, o *origin) (string, error) {
	env := map[string]string{"DIR": at.dir, "WORK": "harvest/" + at.name, "SENT": "", "SHALLOW": "", "PATCH": "",
		"FROM": "", "ID": rand.Text(), "BRANCH": o.req.Branch, "ORIGIN": o.req.Repo, "NAME": "Agent (Harvest)",
		"EMAIL": "agent@harvest.invalid", "BY": "", "BYMAIL": ""}
	if o.cargo == nil {
		env["FROM"] = o.req.Repo
	} else {
		to := sandboxFiles{s.Client, at.box.ID}
		defer func() { _ = s.Client.RemoveFile(context.WithoutCancel(ctx), at.box.ID, sent, true) }()
		if err := o.cargo.Send(ctx, to, &o.req); err != nil {
			return "", err
		}
		if err := o.place(ctx, to, env); err != nil {
			return "", err
		}
	}
	out, err := s.run(ctx, at.box.ID, script{name: "begin", env: env})
	if err != nil && errors.KindOf(err) == errors.Invalid && o.from != "" {
		err = git.Explain("cannot clone "+o.from, errors.Message(err))
	}
	return strings.TrimSpace(out), err
}

// place puts the parts of a repository into files, and their names into env.
func (o *origin) place(ctx context.Context, to sandboxFiles, env map[string]string) error {
	env["NAME"], env["EMAIL"] = o.cargo.Author.Name+" (Harvest)", o.cargo.Author.Email
	type part struct {
		variable, id string
		content      []byte
	}
	parts := []part{{"SENT", o.req.BundleID, o.req.Bundle}, {"SHALLOW", "", o.req.Shallow}}
	if u := o.req.Uncommitted; u != nil {
		parts = append(parts, part{"PATCH", u.PatchID, u.Patch})
		env["BY"], env["BYMAIL"] = u.Author.Name, u.Author.Email
	}
	for _, p := range parts {
		switch {
		case p.id != "":
			env[p.variable] = p.id
		case len(p.content) > 0:
			id, err := to.write(ctx, strings.ToLower(p.variable), int64(len(p.content)),
				strings.NewReader(string(p.content)))
			if err != nil {
				return err
			}
			env[p.variable] = id
		}
	}
	return nil
}

// sandboxFiles implements Uploads: it writes files in a sandbox. Their IDs are their paths.
type sandboxFiles struct {
	client  *client.Client
	sandbox string
}

func (f sandboxFiles) write(ctx context.Context, name string, size int64, r io.Reader) (string, error) {
	_, err := f.client.MakeDirectory(ctx, f.sandbox, api.MkdirRequest{Path: sent, Parents: true})
	if err != nil {
		return "", err
	}
	_, err = f.client.WriteFile(ctx, f.sandbox, sent+"/"+name, 0o644, size, r)
	return sent + "/" + name, err
}

// Upload implements Uploads. The size of the file must be known, so it is kept in a temporary file.
func (f sandboxFiles) Upload(ctx context.Context, r io.Reader) (api.FileUpload, error) {
	temp, err := os.CreateTemp("", "harvest-mcp-")
	if err != nil {
		return api.FileUpload{}, errors.Explainf(err, errors.Unavailable, "cannot create a temporary file: %v", err)
	}
	defer os.Remove(temp.Name())
	defer temp.Close()
	size, err := io.Copy(temp, r)
	if err == nil {
		_, err = temp.Seek(0, io.SeekStart)
	}
	if err != nil {
		return api.FileUpload{}, err
	}
	id, err := f.write(ctx, path.Base(temp.Name()), size, temp)
	return api.FileUpload{ID: id, Size: size}, err
}

// RemoveUpload implements Uploads. begin removes all files.
func (f sandboxFiles) RemoveUpload(context.Context, string) error { return nil }
