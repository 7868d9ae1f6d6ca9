// Package images serves images, their builds and the build cache.
package images

import (
	"context"
	"encoding/json"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Service serves the routes for images and their builds.
type Service struct {
	edge.Settings
	Fleet   *fleet.Fleet // has the credentials for registries
	Images  image.Builder
	Secrets *secret.Vault // nil: not supported
	// Export, if set, writes an image as an OCI archive.
	Export func(ctx context.Context, img image.Image, w io.Writer) error
	Engine string        // name of the engine
	Temp   string        // directory for build contexts
	Age    time.Duration // how long an image must be unused to be collected, if the request does not specify an age
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "POST", Path: api.Images, Handle: s.buildImage, Scope: write,
			Summary: "Build an image if it does not exist. A build context is sent as a form, with the JSON as " +
				"\"request\" and then a tar stream as \"context\"", In: api.BuildRequest{},
			Out: api.Image{}, Status: 201, Events: "image.progress and image.log, then image.built or error"},
		{Method: "POST", Path: api.ImageCollect, Handle: s.collectImages, Scope: write, Operator: true,
			Summary: "Remove unused images", In: api.CollectRequest{},
			Out: api.Collected{}, Status: 200},
		{Method: "GET", Path: api.BuildCache, Handle: s.listBuildCache, Scope: read,
			Summary: "List cached layers and cache mounts of the account's builds, last used first",
			Query:   edge.QueryPage, Out: api.List[api.Cached]{}, Status: 200},
		{Method: "DELETE", Path: api.BuildCached, Handle: s.forgetBuild, Scope: write,
			Summary: "Remove a cached layer or cache mount, by its id", Status: 204},
		{Method: "GET", Path: api.ImageExport, Handle: s.exportImage, Scope: read,
			Summary: "Get an image as an OCI archive, for docker load or podman load",
			RawOut:  api.TypeTar, Status: 200},
		{Method: "GET", Path: api.Images, Handle: s.listImages, Scope: read, Summary: "List images, newest first",
			Query: edge.QueryPage, Out: api.List[api.Image]{}, Status: 200},
		{Method: "GET", Path: api.Imaged, Handle: s.getImage, Scope: read,
			Summary: "Get an image by its id, digest or name", Out: api.Image{}, Status: 200},
		{Method: "DELETE", Path: api.Imaged, Handle: s.deleteImage, Scope: write,
			Summary: "Delete an image", Status: 204},
	}
}

// Of returns the images of the caller of r.
func (s *Service) Of(r *http.Request) image.Builder {
	return image.Of(s.Images, account.Owner(edge.Account(r)))
}

// maxContext is the size limit for a build context, in bytes.
const maxContext = 8 << 30

// buildImage responds with the image, or with events: first the progress, then the image.
func (s *Service) buildImage(w http.ResponseWriter, r *http.Request) error {
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
		Credentials: s.Fleet.Credentials(edge.Account(r), req.Login),
	}
	for id, value := range req.Secrets {
		opts.Secrets[id] = []byte(value)
	}
	if !edge.WantsEvents(r) {
		built, err := s.Of(r).Build(r.Context(), spec, opts)
		return edge.Send(w, http.StatusCreated, oneImageOut, built, err)
	}
	ev := s.NewEvents(w)
	defer ev.Close()
	opts.Progress = func(p image.Progress) { ev.Send(api.EventProgress, api.Progress(p)) }
	opts.Log = func(line string) { ev.Send(api.EventLog, api.LogLine{Line: line}) }
	built, err := s.Of(r).Build(r.Context(), spec, opts)
	if err != nil {
		ev.Send(api.EventProblem, edge.Problem(r.Context(), err))
		return nil
	}
	ev.Send(api.EventBuilt, oneImageOut(built))
	return nil
}

// checkLogin returns an error if there is no such secret. A build asks for its credentials only if it reaches a
// registry.
func (s *Service) checkLogin(r *http.Request, name string) error {
	if name == "" {
		return nil
	}
	if s.Secrets == nil {
		return edge.Lacks("secrets")
	}
	_, err := s.Secrets.Get(r.Context(), edge.Account(r), name)
	return err
}

// buildRequest reads the build request. The build context, if there is one, is stored in the returned file, which the
// caller removes.
func (s *Service) buildRequest(w http.ResponseWriter, r *http.Request) (req api.BuildRequest, files string, err error) {
	if media, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); media != api.TypeForm {
		err := edge.DecodeBody(w, r, api.MaxBody, &req)
		return req, "", errors.Join(err, checkBuild(req))
	}
	form, err := r.MultipartReader()
	if err != nil {
		return req, "", errors.Explainf(err, errors.Invalid, "cannot read the form")
	}
	if err := part(form, api.FieldRequest, func(body io.Reader) error {
		data, err := io.ReadAll(io.LimitReader(body, api.MaxBody+1))
		if err != nil {
			return edge.BrokeOff(err, "the request")
		}
		if len(data) > api.MaxBody {
			return errors.Newf(errors.Invalid, "field %q: more than %d bytes", api.FieldRequest, api.MaxBody)
		}
		return errors.Join(edge.Decode(data, &req), checkBuild(req))
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
func (s *Service) keepContext(body io.Reader) (_ string, err error) {
	f, err := os.CreateTemp(s.Temp, "context-*.tar")
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
		return "", edge.BrokeOff(err, "the build context")
	case n > maxContext:
		return "", errors.Remedy(errors.Newf(errors.Invalid, "the build context exceeds %d bytes", int64(maxContext)),
			"build from a smaller directory")
	}
	return f.Name(), nil
}

// exportImage responds with an OCI archive. The response starts after the first bytes are available.
func (s *Service) exportImage(w http.ResponseWriter, r *http.Request) error {
	if s.Export == nil {
		return errors.Newf(errors.Unsupported, "the engine %s does not support the export of images", s.Engine)
	}
	found, err := s.Of(r).Find(r.Context(), r.PathValue("id"))
	if err != nil {
		return err
	}
	return edge.Pour(w, r, func(out io.Writer) error { return s.Export(r.Context(), found, out) })
}

// collectImages removes unused images.
func (s *Service) collectImages(w http.ResponseWriter, r *http.Request) error {
	var req api.CollectRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	what := image.Collection{Age: s.Age, Size: req.Size, All: req.All, Dry: req.DryRun}
	if req.AgeSeconds != nil {
		age, err := edge.Seconds("age_seconds", *req.AgeSeconds)
		if err != nil {
			return err
		}
		what.Age = age
	}
	if what.Age < 0 || what.Size < 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid age_seconds or size_bytes: must not be negative"),
			"give an age of 0 for all unused images, a size of 0 for no limit")
	}
	c, ok := s.Images.(image.Collector)
	if !ok {
		return errors.Newf(errors.Unsupported, "the engine %s does not support the collection of images", s.Engine)
	}
	done, err := c.Collect(r.Context(), what)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, api.Collected{Images: edge.Each(done.Images, Out), Freed: done.Freed,
		Left: done.Left})
}

// buildCache returns the build cache and the owner whose part of it is requested.
func (s *Service) buildCache(r *http.Request) (c image.BuildCache, owner string, err error) {
	if library, ok := s.Images.(interface{ BuildCache() image.BuildCache }); ok {
		c = library.BuildCache()
	}
	if c == nil {
		return nil, "", errors.Newf(errors.Unsupported, "the engine %s has no build cache", s.Engine)
	}
	return c, account.Owner(edge.Account(r)), nil
}

func (s *Service) listBuildCache(w http.ResponseWriter, r *http.Request) error {
	c, owner, err := s.buildCache(r)
	if err != nil {
		return err
	}
	all, err := c.Kept(r.Context(), owner)
	if err != nil {
		return err
	}
	last := func(k image.Kept) string { return k.Used.UTC().Format("2006-01-02T15:04:05.000000000") + k.ID }
	return edge.Paged(s.Settings, w, r, all, true, last, func(k image.Kept) api.Cached {
		return api.Cached{ID: k.ID, Kind: string(k.Kind), Text: k.Text, Size: k.Size, Used: k.Used.UTC()}
	})
}

func (s *Service) forgetBuild(w http.ResponseWriter, r *http.Request) error {
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

func (s *Service) listImages(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Of(r).List(r.Context())
	if err != nil {
		return err
	}
	newest := func(i image.Image) string { return i.Built.UTC().Format("2006-01-02T15:04:05.000000000") + i.ID }
	return edge.Paged(s.Settings, w, r, found, true, newest, Out)
}

func (s *Service) getImage(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Of(r).Find(r.Context(), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, oneImageOut, found, err)
}

// deleteImage accepts any name of an image, like getImage. It removes only that name if the image has others.
func (s *Service) deleteImage(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.Of(r).Delete(r.Context(), r.PathValue("id")))
}

// Out returns an image in the form of the API, without its history.
func Out(i image.Image) api.Image {
	part := func(p image.Part) api.Part { return api.Part(p) }
	out := api.Image{
		Kind: api.KindBuilt, ID: i.ID, Digest: i.Digest, Names: edge.Each(i.Names, func(n string) string { return n }),
		Base: i.Spec.Base,
		Env:  i.Config.Env, User: i.Config.User, Workdir: i.Config.Dir, Size: i.Size, Built: i.Built.UTC(),
		BuildSeconds: i.BuildTime.Seconds(), Parts: edge.Each(i.Parts, part), Missing: edge.Each(i.Missing, part),
		Platform: i.Spec.Platform, Command: i.Config.Cmd, Entrypoint: i.Config.Entrypoint, Labels: i.Config.Labels,
		Ports: i.Config.Ports, Volumes: i.Config.Volumes, StopSignal: i.Config.StopSignal,
		HealthCheck: healthOut(i.Config.Healthcheck), OnBuild: i.Config.OnBuild,
	}
	if s := i.Snapshot; s != nil {
		origin := func(o image.Origin) api.Origin {
			return api.Origin{Image: o.Image, Sandbox: o.Sandbox, Time: o.Time.UTC()}
		}
		out.Kind, out.Snapshot = api.KindSnapshot, &api.Snapshot{Parent: i.Spec.Parent, Path: s.Path, Size: s.Size,
			Lineage: edge.Each(s.Lineage, origin)}
	}
	return out
}

// oneImageOut is Out with the history.
func oneImageOut(i image.Image) api.Image {
	out := Out(i)
	for _, h := range i.Config.History {
		out.History = append(out.History, api.History{Created: h.Created, CreatedBy: h.By, Comment: h.Comment,
			Empty: h.Empty})
	}
	return out
}

// healthOut returns a health check in the form of an image's configuration, whose times are nanoseconds.
func healthOut(text json.RawMessage) *api.HealthCheck {
	var h struct {
		Test                                          []string
		Interval, Timeout, StartPeriod, StartInterval time.Duration
		Retries                                       int
	}
	if len(text) == 0 || json.Unmarshal(text, &h) != nil {
		return nil
	}
	return &api.HealthCheck{Test: h.Test, IntervalSeconds: h.Interval.Seconds(), TimeoutSeconds: h.Timeout.Seconds(),
		StartPeriodSeconds: h.StartPeriod.Seconds(), StartIntervalSeconds: h.StartInterval.Seconds(),
		Retries: h.Retries}
}
