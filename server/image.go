package server

import (
	"bytes"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"syscall"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

// images returns the images of the caller.
func (s *Server) images(r *http.Request) image.Builder {
	return image.Of(s.opts.Images, account.Owner(accountOf(r.Context())))
}

// maxContext is the size limit for a build context, in bytes.
const maxContext = 8 << 30

// buildImage responds with the image, or with events: first the progress, then the image.
func (s *Server) buildImage(w http.ResponseWriter, r *http.Request) error {
	req, files, err := s.buildRequest(w, r)
	if err != nil {
		return err
	}
	if files != "" {
		defer os.Remove(files)
	}
	if err := s.checkLogin(r, req.Login); err != nil {
		return err
	}
	spec := image.Spec{Base: req.Base, Platform: req.Platform, Commands: req.Commands, Dockerfile: req.Dockerfile,
		Target: req.Target, Args: req.Args}
	if spec.Base == "" && spec.Dockerfile == "" {
		spec.Base = "base"
	}
	opts := image.BuildOptions{
		Force: req.Force, Pull: image.Pull(req.Pull), Names: req.Names, Context: files, Secrets: map[string][]byte{},
		Credentials: s.opts.Fleet.Credentials(accountOf(r.Context()), req.Login),
	}
	for id, value := range req.Secrets {
		opts.Secrets[id] = []byte(value)
	}
	if !wantsEvents(r) {
		built, err := s.images(r).Build(r.Context(), spec, opts)
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, oneImageOut(built))
	}
	ev := s.newEvents(w)
	defer ev.close()
	opts.Progress = func(p image.Progress) { ev.send(api.EventProgress, api.Progress(p)) }
	opts.Log = func(line string) { ev.send(api.EventLog, api.LogLine{Line: line}) }
	built, err := s.images(r).Build(r.Context(), spec, opts)
	if err != nil {
		ev.send(api.EventProblem, problem(r.Context(), err))
		return nil
	}
	ev.send(api.EventBuilt, oneImageOut(built))
	return nil
}

// checkLogin returns an error if there is no such secret. A build asks for its credentials only if it reaches a
// registry.
func (s *Server) checkLogin(r *http.Request, name string) error {
	if name == "" {
		return nil
	}
	vault, err := s.vault()
	if err == nil {
		_, err = vault.Get(r.Context(), accountOf(r.Context()), name)
	}
	return err
}

// buildRequest reads the build request. The build context, if there is one, is stored in the returned file, which the
// caller removes.
func (s *Server) buildRequest(w http.ResponseWriter, r *http.Request) (req api.BuildRequest, files string, err error) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != api.TypeForm {
		err := decodeBody(w, r, api.MaxBody, &req)
		return req, "", errors.Join(err, checkBuild(req))
	}
	form, err := r.MultipartReader()
	if err != nil {
		return req, "", errors.Explainf(err, errors.Invalid, "cannot read the form")
	}
	if err := part(form, api.FieldRequest, func(body io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(body, api.MaxBody+1))
		if err != nil {
			return brokeOff(err, "the request")
		}
		if len(data) > api.MaxBody {
			return errors.Newf(errors.Invalid, "field %q: more than %d bytes", api.FieldRequest, api.MaxBody)
		}
		return errors.Join(decode(data, &req), checkBuild(req))
	}); err != nil {
		return req, "", err
	}
	err = part(form, api.FieldContext, func(body io.Reader) error {
		files, err = s.keepContext(body)
		return err
	})
	return req, files, err
}

// checkBuild rejects requests that no builder supports.
func checkBuild(req api.BuildRequest) error {
	if pull := image.Pull(req.Pull); pull != "" && pull != image.PullMissing && pull != image.PullAlways {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid pull: %.40q", req.Pull), `give "missing" or "always"`)
	}
	return nil
}

// part reads the next part of a form, which must have this name.
func part(form *multipart.Reader, name string, read func(io.Reader) error) error {
	p, err := form.NextPart()
	if err != nil && err != io.EOF {
		return errors.Explainf(err, errors.Invalid, "cannot read the form")
	}
	if err != nil || p.FormName() != name {
		return errors.Remedy(errors.Newf(errors.Invalid, "the form has no field %q in the expected place", name),
			"send %q, then %q", api.FieldRequest, api.FieldContext)
	}
	return read(p)
}

// keepContext writes a build context to a file.
func (s *Server) keepContext(body io.Reader) (_ string, err error) {
	f, err := os.CreateTemp(s.opts.Temp, "context-*.tar")
	if err != nil {
		return "", errors.Wrapf(err, "store the build context")
	}
	defer func() {
		if err = errors.Join(err, f.Close()); err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	n, err := io.Copy(f, io.LimitReader(body, maxContext+1))
	switch {
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return "", errors.Remedy(errors.Explainf(err, errors.Exhausted,
			"no space left on the server's disk for the build context"),
			"free some space, or exclude files with .dockerignore")
	case err != nil:
		return "", brokeOff(err, "the build context")
	case n > maxContext:
		return "", errors.Remedy(errors.Newf(errors.Invalid, "the build context exceeds %d bytes", int64(maxContext)),
			"build from a smaller directory")
	}
	return f.Name(), nil
}

// exportImage responds with an OCI archive. The response starts after the first bytes are available.
func (s *Server) exportImage(w http.ResponseWriter, r *http.Request) error {
	if s.opts.Export == nil {
		return errors.Newf(errors.Unsupported, "the engine %s does not support the export of images", s.opts.Engine)
	}
	found, err := s.images(r).Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return s.pour(w, r, func(out io.Writer) error { return s.opts.Export(r.Context(), found, out) })
}

// pour responds with the tar stream that write produces. The response starts after the first block: an error before
// that becomes a problem response.
func (s *Server) pour(w http.ResponseWriter, r *http.Request, write func(io.Writer) error) error {
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(write(pw)) }()
	first := make([]byte, 512)
	n, err := io.ReadFull(pr, first)
	if err != nil {
		pr.Close()
		return err
	}
	return sendTar(w, r, &resumed{io.MultiReader(bytes.NewReader(first[:n]), pr), pr})
}

// resumed is a stream whose beginning was read already.
type resumed struct {
	io.Reader
	io.Closer
}

// collectImages removes unused images.
func (s *Server) collectImages(w http.ResponseWriter, r *http.Request) error {
	var req api.CollectRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	what := image.Collection{Age: s.opts.ImageAge, Size: req.Size, All: req.All, Dry: req.DryRun}
	if req.AgeSeconds != nil {
		age, err := seconds("age_seconds", *req.AgeSeconds)
		if err != nil {
			return err
		}
		what.Age = age
	}
	if what.Age < 0 || what.Size < 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid age_seconds or size_bytes: must not be negative"),
			"give an age of 0 for all unused images, a size of 0 for no limit")
	}
	c, ok := s.opts.Images.(image.Collector)
	if !ok {
		return errors.Newf(errors.Unsupported, "the engine %s does not support the collection of images", s.opts.Engine)
	}
	done, err := c.Collect(r.Context(), what)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, api.Collected{Images: each(done.Images, imageOut), Freed: done.Freed,
		Left: done.Left})
}

// buildCache returns the build cache and the owner whose part of it is requested.
func (s *Server) buildCache(r *http.Request) (c image.BuildCache, owner string, err error) {
	if library, ok := s.opts.Images.(interface{ BuildCache() image.BuildCache }); ok {
		c = library.BuildCache()
	}
	if c == nil {
		return nil, "", errors.Newf(errors.Unsupported, "the engine %s has no build cache", s.opts.Engine)
	}
	return c, account.Owner(accountOf(r.Context())), nil
}

func (s *Server) listBuildCache(w http.ResponseWriter, r *http.Request) error {
	c, owner, err := s.buildCache(r)
	if err != nil {
		return err
	}
	all, err := c.Kept(r.Context(), owner)
	if err != nil {
		return err
	}
	last := func(k image.Kept) string { return k.Used.UTC().Format("2006-01-02T15:04:05.000000000") + k.ID }
	return paged(s, w, r, all, true, last, func(k image.Kept) api.Cached {
		return api.Cached{ID: k.ID, Kind: string(k.Kind), Text: k.Text, Size: k.Size, Used: k.Used.UTC()}
	})
}

func (s *Server) forgetBuild(w http.ResponseWriter, r *http.Request) error {
	c, owner, err := s.buildCache(r)
	if err != nil {
		return err
	}
	if _, err := c.Forget(r.Context(), owner, r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) listImages(w http.ResponseWriter, r *http.Request) error {
	found, err := s.images(r).List(r.Context())
	if err != nil {
		return err
	}
	newest := func(i image.Image) string { return i.Built.UTC().Format("2006-01-02T15:04:05.000000000") + i.ID }
	return paged(s, w, r, found, true, newest, imageOut)
}

func (s *Server) getImage(w http.ResponseWriter, r *http.Request) error {
	found, err := s.images(r).Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, oneImageOut(found))
}

// deleteImage accepts any name of an image, like getImage. It removes only that name if the image has others.
func (s *Server) deleteImage(w http.ResponseWriter, r *http.Request) error {
	if err := s.images(r).Delete(r.Context(), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
