package server

import (
	"context"
	"net/http"
	"slices"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/logf"
)

// route is one row of the API, for the router and for the OpenAPI document.
type route struct {
	method, path string
	handle       handler
	scope        account.Scope // required scope; "" for everyone, signed in or not
	operator     bool          // only for the operator
	signsIn      bool          // a GET that ends with a new sign-in

	summary string
	query   string // parameters, as "name: description", separated by ';'
	in      any    // a value of the JSON body's type; nil for none
	out     any    // a value of the response's type; nil for none
	status  int    // on success
	// rawIn and rawOut are the types of bodies that are not JSON.
	rawIn, rawOut string
	events        string // server-sent events for Accept: text/event-stream
	socket        string // description of the route as a WebSocket
	secret        bool   // the response must not be kept
	raw           bool   // pass the request through unread: no Idempotency-Key
}

// changes reports whether a request may change or run something. Such requests are in the audit log, whatever their
// result.
func (rt route) changes() bool {
	return rt.method != http.MethodGet || rt.signsIn || rt.scope != account.Read && rt.scope != ""
}

// Query parameters of several routes.
const (
	queryPage = "limit: maximum number of entries, up to 1000; cursor: next_cursor of the previous page"
	queryPath = "path: path of the file or directory"
)

// routes returns one row per route.
func (s *Server) routes() []route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return append([]route{
		{method: "POST", path: api.Sandboxes, handle: s.createSandbox, scope: write, summary: "Create a sandbox",
			in:  api.SandboxRequest{},
			out: api.Sandbox{}, status: 201, events: "image.progress, then sandbox.ready or error"},
		{method: "GET", path: api.Sandboxes, handle: s.listSandboxes, scope: read,
			summary: "List sandboxes, newest first",
			query:   queryPage + "; all: also sandboxes that have ended; name: only the sandbox of this name; tag: KEY=VALUE, repeatable; everyone: sandboxes of all accounts, for operators", out: api.List[api.Sandbox]{}, status: 200},
		{method: "GET", path: api.Sandboxed, handle: s.getSandbox, scope: read, summary: "Get a sandbox",
			out: api.Sandbox{}, status: 200},
		{method: "DELETE", path: api.Sandboxed, handle: s.destroySandbox, scope: write,
			summary: "End a sandbox and release its resources",
			query:   "sync: upload its volume to S3 first (default: the sandbox's setting); everyone: a sandbox of any account, by its whole id, for operators", status: 204},
		{method: "POST", path: api.SandboxSync, handle: s.syncSandbox, scope: write,
			summary: "Synchronize a sandbox's volume with S3, in the direction up, down or both",
			in:      api.SandboxSyncRequest{}, out: api.Synced{}, status: 200,
			events: "volume.syncing, then volume.synced or error"},
		{method: "POST", path: api.SandboxExtend, handle: s.extendSandbox, scope: write,
			summary: "Extend the lifetime of a sandbox", in: api.ExtendRequest{},
			out: api.Sandbox{}, status: 200},
		{method: "POST", path: api.SandboxNetwork, handle: s.setNetwork, scope: write,
			summary: "Change the network policy of a running sandbox", in: api.Network{},
			out: api.Sandbox{}, status: 200},
		{method: "GET", path: api.SandboxUsage, handle: s.sandboxUsage, scope: read,
			summary: "Get the resource use of a sandbox over its life: CPU time, memory and network",
			out:     api.Used{}, status: 200},
		{method: "GET", path: api.SandboxConnect, handle: s.connectPort, scope: exec,
			summary: "Connect to a port in a sandbox", query: "port: number of the port",
			socket: "binary messages carry the bytes, a text message is the end of its sender's stream"},
		{method: "POST", path: api.SandboxSnapshot, handle: s.snapshotSandbox, scope: write,
			summary: "Make an image of a running sandbox's files",
			in:      api.SnapshotRequest{}, out: api.Image{}, status: 201},
		{method: "POST", path: api.SandboxFork, handle: s.forkSandbox, scope: write,
			summary: "Create a sandbox with the files of a running one",
			in:      api.ForkRequest{}, out: api.Sandbox{}, status: 201},
		{method: "POST", path: api.SandboxExec, handle: s.exec, scope: exec,
			summary: "Run a command. If it is detached, the answer is 202 with the id of the process",
			in:      api.ExecRequest{}, out: api.Result{}, status: 200,
			events: "started, stdout, stderr, then exit or error"},
		{method: "GET", path: api.SandboxExec, handle: s.execStream, scope: exec,
			summary: "Run a command or attach to one, with input and output as messages",
			socket:  "the first message is an ExecRequest or an AttachRequest"},
		{method: "GET", path: api.SandboxProcesses, handle: s.listProcesses, scope: read,
			summary: "List the commands of a sandbox", query: queryPage,
			out: api.List[api.Process]{}, status: 200},
		{method: "PUT", path: api.SandboxArchive, handle: s.sandboxArchiveIn, scope: write,
			summary: "Unpack a tar stream in a directory", query: queryPath,
			rawIn: api.TypeTar, status: 204},
		{method: "GET", path: api.SandboxArchive, handle: s.sandboxArchiveOut, scope: read,
			summary: "Get a file or directory as a tar stream", query: queryPath,
			rawOut: api.TypeTar, status: 200},
		{method: "GET", path: api.Events, handle: s.streamEvents, scope: read,
			summary: "Follow the events of the account's sandboxes, or of one stream",
			query:   "stream: id or name of a sandbox, session or repository (default: all); after: only events after this id, as with the header Last-Event-ID; tail: only the last N events, and new ones; attended: true if a person reads the events and can answer questions",
			rawOut:  api.TypeEvents, status: 200},
		{method: "POST", path: api.Run, handle: s.run, scope: exec, summary: "Run a command in a new sandbox",
			in: api.RunRequest{}, out: api.Result{},
			status: 200, events: "image.progress, started, stdout, stderr, then exit or error"},
		{method: "GET", path: api.Run, handle: s.runStream, scope: exec,
			summary: "Run a command in a new sandbox, with input and output as messages",
			socket:  "the first message is a RunRequest"},
	}, slices.Concat(s.dataRoutes(), s.systemRoutes(), s.secretRoutes(), s.scheduleRoutes(), s.sessionRoutes(),
		s.gitRoutes(), s.repoRoutes(), s.modalRoutes(), s.fileRoutes(), s.terminalRoutes(), s.linkRoutes(),
		s.oidcRoutes(), s.proxyRoutes())...)
}

func (s *Server) dataRoutes() []route {
	const read, write = account.Read, account.Write
	return []route{
		{method: "POST", path: api.Volumes, handle: s.createVolume, scope: write,
			summary: "Create a volume if it is missing", in: api.VolumeRequest{},
			out: api.Volume{}, status: 201},
		{method: "GET", path: api.Volumes, handle: s.listVolumes, scope: read, summary: "List volumes by name",
			query: queryPage, out: api.List[api.Volume]{}, status: 200},
		{method: "DELETE", path: api.VolumeNamed, handle: s.deleteVolume, scope: write,
			summary: "Delete a volume and its files",
			query:   "force: delete the volume even if some of its files are not in S3 yet, which are lost", status: 204},
		{method: "PUT", path: api.VolumeArchive, handle: s.volumeArchiveIn, scope: write,
			summary: "Unpack a tar stream in a directory", query: queryPath,
			rawIn: api.TypeTar, status: 204},
		{method: "GET", path: api.VolumeArchive, handle: s.volumeArchiveOut, scope: read,
			summary: "Get a file or directory as a tar stream", query: queryPath,
			rawOut: api.TypeTar, status: 200},
		{method: "GET", path: api.VolumeList, handle: s.listVolumeFiles, scope: read, summary: "List a directory",
			query: queryPath + "; " + queryPage,
			out:   api.List[api.Entry]{}, status: 200},
		{method: "DELETE", path: api.VolumeFiles, handle: s.removeVolumeFile, scope: write,
			summary: "Remove a file or directory", query: queryPath, status: 204},

		{method: "POST", path: api.VolumeSync, handle: s.syncVolume, scope: write,
			summary: "Synchronize a volume with S3, in the direction up, down or both",
			in:      api.VolumeSyncRequest{}, out: api.Synced{}, status: 200,
			events: "volume.syncing, then volume.synced or error"},
		{method: "GET", path: api.VolumeVersions, handle: s.volumeVersions, scope: read,
			summary: "List the versions of a volume in S3, newest first",
			query:   "bucket: a bucket of the account (default: the server's); prefix: prefix in the bucket; secret: secret with its credentials; " + queryPage, out: api.List[api.VolumeVersion]{}, status: 200},
		{method: "DELETE", path: api.VolumeVersions, handle: s.pruneVersions, scope: write,
			summary: "Delete all but the latest versions of a volume",
			query:   "keep: number of versions to keep, at least 1; bucket: a bucket of the account (default: the server's); prefix: prefix in the bucket; secret: secret with its credentials", status: 204},

		{method: "POST", path: api.Images, handle: s.buildImage, scope: write,
			summary: "Build an image if it does not exist. A build context is sent as a form, with the JSON as \"request\" and then a tar stream as \"context\"", in: api.BuildRequest{},
			out: api.Image{}, status: 201, events: "image.progress and image.log, then image.built or error"},
		{method: "POST", path: api.ImageCollect, handle: s.collectImages, scope: write, operator: true,
			summary: "Remove unused images", in: api.CollectRequest{},
			out: api.Collected{}, status: 200},
		{method: "GET", path: api.BuildCache, handle: s.listBuildCache, scope: read,
			summary: "List cached layers and cache mounts of the account's builds, last used first",
			query:   queryPage, out: api.List[api.Cached]{}, status: 200},
		{method: "DELETE", path: api.BuildCached, handle: s.forgetBuild, scope: write,
			summary: "Remove a cached layer or cache mount, by its id", status: 204},
		{method: "GET", path: api.ImageExport, handle: s.exportImage, scope: read,
			summary: "Get an image as an OCI archive, for docker load or podman load",
			rawOut:  api.TypeTar, status: 200},
		{method: "GET", path: api.Images, handle: s.listImages, scope: read, summary: "List images, newest first",
			query: queryPage, out: api.List[api.Image]{}, status: 200},
		{method: "GET", path: api.Imaged, handle: s.getImage, scope: read,
			summary: "Get an image by its id, digest or name", out: api.Image{}, status: 200},
		{method: "DELETE", path: api.Imaged, handle: s.deleteImage, scope: write,
			summary: "Delete an image", status: 204},
	}
}

func (s *Server) systemRoutes() []route {
	const read, write = account.Read, account.Write
	return []route{
		{method: "POST", path: api.Keys, handle: s.createKey, scope: write,
			summary: "Create a key, which is shown only this time", in: api.KeyRequest{}, out: api.NewKey{},
			status: 201, secret: true},
		{method: "GET", path: api.Keys, handle: s.listKeys, scope: read,
			summary: "List the account's keys, newest first",
			query:   queryPage + "; all: keys of all accounts, for operators", out: api.List[api.Key]{}, status: 200},
		{method: "DELETE", path: api.Keyed, handle: s.revokeKey, scope: write,
			summary: "Revoke a key, by its id or name", status: 204},
		{method: "GET", path: api.Account, handle: s.self, scope: read,
			summary: "Get the caller's identity, and the resource use of its account", out: api.Self{}, status: 200},
		{method: "POST", path: api.Links, handle: s.createLink, scope: write,
			summary: "Create a single-use sign-in link for a browser", out: api.Link{}, status: 201, secret: true},
		{method: "GET", path: api.SignIn, handle: s.offerSignIn, summary: "Page with a button to sign in",
			query: "token: token of the link", rawOut: "text/html", status: 200},
		{method: "POST", path: api.SignIn, handle: s.signIn,
			summary: "Sign in with the token of a link, which is used up",
			query:   "token: token of the link", status: 303},
		{method: "POST", path: api.SignOut, handle: s.signOut, scope: read, summary: "Sign out", status: 204},

		{method: "GET", path: api.Audit, handle: s.listAudit, scope: read,
			summary: "List the changes that the account made, newest first; those of all accounts for operators",
			query:   queryPage,
			out:     api.List[api.AuditLine]{}, status: 200},
		{method: "GET", path: api.Doctor, handle: s.doctor, scope: read, operator: true,
			summary: "Check the server's machine, and suggest fixes", out: api.List[api.Finding]{}, status: 200},
		{method: "POST", path: api.Shutdown, handle: s.shutdown, scope: write, operator: true,
			summary: "Stop the server; sandboxes keep running",
			in:      api.ShutdownRequest{}, status: 202, secret: true},
		{method: "POST", path: api.Backup, handle: s.backup, scope: write, operator: true,
			summary: "Get a backup of the server's records as a tar stream",
			in:      api.BackupRequest{}, rawOut: api.TypeTar, status: 200, raw: true},
		{method: "GET", path: api.Metrics, handle: s.showMetrics, scope: read,
			summary: "Metrics for Prometheus, for keys of the account personal", rawOut: "text/plain", status: 200},
		{method: "GET", path: api.Healthz, handle: s.healthz, summary: "Liveness of the server",
			rawOut: "text/plain", status: 200},
		{method: "GET", path: api.Readyz, handle: s.readyz, summary: "Readiness of the server; with a key, details",
			out: api.Server{}, status: 200},
		{method: "GET", path: api.OpenAPI, handle: s.openAPI, summary: "This document, as JSON",
			rawOut: api.TypeJSON, status: 200},
		{method: "GET", path: api.Docs, handle: s.docs, summary: "This document, as a page",
			rawOut: "text/html", status: 200},
	}
}

// router returns the handler for all routes.
func (s *Server) router() http.Handler {
	mux := http.NewServeMux()
	for _, rt := range s.routes() {
		mux.Handle(rt.method+" "+rt.path, s.handle(s.guarded(rt)))
	}
	mux.Handle("GET /{$}", s.handle(s.page))
	mux.Handle("GET /ui/{file...}", s.handle(s.page))
	mux.Handle("/", s.handle(s.unknown))
	return mux
}

// guarded checks authentication, scope and rate limits before it calls the route's handler.
func (s *Server) guarded(rt route) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		v := visitOf(r.Context())
		if v != nil {
			v.audited = rt.changes()
		}
		if rt.scope == "" {
			return rt.handle(w, r)
		}
		who, err := s.authenticate(r)
		if err != nil {
			if limit := s.limits.allow(w, peerOf(r.Context()).addr.String(), strangers); limit != nil {
				return limit
			}
			return err
		}
		w.Header().Set(api.HeaderVersion, s.opts.Version)
		w.Header().Set("Cache-Control", "no-store") // unless the route sets it
		ctx := context.WithValue(r.Context(), principalKey{}, who)
		if v != nil {
			v.who = who
		}
		if who.KeyID != "" {
			ctx = logf.With(ctx, "account", who.Account, "key_id", who.KeyID)
			if err := s.limits.allow(w, who.KeyID, s.opts.Rate); err != nil {
				return err
			}
		}
		r = r.WithContext(ctx)
		if err := who.May(rt.scope); err != nil {
			return err
		}
		if rt.operator {
			if err := who.MustBeOperator(); err != nil {
				return err
			}
		}
		r, done := s.follow(w, r, who)
		defer done()
		if r.Method == http.MethodPost && !rt.raw && r.Header.Get(api.HeaderIdempotency) != "" {
			err = s.once(rt, w, r)
		} else {
			err = rt.handle(w, r)
		}
		if err != nil {
			return endedBy(r.Context(), err)
		}
		return nil
	}
}
