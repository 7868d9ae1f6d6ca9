// Package repos has the command for images of repositories: add, build, refresh, and their history.
package repos

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// Command returns the command for images of repositories.
func Command(base *cli.CLI) *cobra.Command {
	c := commands{base}
	return cli.Group(&cobra.Command{
		Use:   "repo",
		Short: "Manage images of repositories with installed dependencies",
		Long: `For a registered repository, Harvest clones it in a sandbox, installs its dependencies, builds it, and
stores the result as an image. Sessions of that repository start from it. While harvest up
runs, it checks every half hour for new commits.`,
		Example: `  harvest repo add https://github.com/owner/name
  harvest repo ls
  harvest agent --repo https://github.com/owner/name "fix the failing test"`,
	}, c.repoAdd(), c.repoList(), c.repoGet(), c.repoBuild(), c.repoRefresh(), c.repoLog(), c.repoHistory(),
		c.repoRemove())
}

func (c commands) repoAdd() *cobra.Command {
	var req api.RepoRequest
	var box cli.SandboxFlags
	var limit cli.TimeFlag
	detach, later := false, false
	commands := map[string]**string{"setup": &req.Setup, "install": &req.Install, "build": &req.Build,
		"test": &req.Test}
	values := map[string]*string{}
	var parts func() // copies the flags that select parts to req
	cmd := c.WithOutput(&cobra.Command{
		Use:   "add URL",
		Short: "Register a repository and build its image",
		Long: `Register a repository and build its image. Harvest detects the commands to run: package managers by
their lock files (npm, pnpm, Yarn, Bun, pip, uv, Poetry, PDM, Pipenv, Go, Cargo, Bundler, Composer),
the versions of Node.js and Python, and scripts called build and test. The log and harvest repo ls
name the parts of the repository that the image lacks.

A file harvest.json in the repository overrides detection, and flags override both. An empty command
means none. Tests run to warm caches: a failure is recorded, but does not fail the build.

A private repository needs a secret with GITHUB_TOKEN, or GIT_TOKEN and GIT_USERNAME.`,
		Example: `  harvest repo add https://github.com/owner/name
  harvest repo add https://github.com/owner/name --secret github --install 'make deps' --test ''
  harvest repo add https://github.com/owner/tool --setup 'apt-get update && apt-get install -y golang-go'`,
		Args: cli.Args(1, 1, "one address"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.URL, req.LimitSeconds = args[0], limit.Seconds()
			for name, target := range commands {
				if cmd.Flags().Changed(name) {
					*target = values[name]
				}
			}
			parts()
			req.Name, box.Name = box.Name, ""
			if req.Sandbox, err = box.Request(cmd); err != nil {
				return err
			}
			return c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
				made, err := server.AddRepo(ctx, req)
				if err != nil || later {
					return errors.Join(err, c.showRepo(made, err))
				}
				begun, err := server.BuildRepo(ctx, made.ID)
				if err != nil || detach {
					return errors.Join(err, c.showRepo(made, err))
				}
				if err := c.followBuild(ctx, server, begun); err != nil {
					return err
				}
				made, err = server.Repo(ctx, made.ID)
				return errors.Join(err, c.showRepo(made, err))
			})(cmd, args)
		},
	}, cli.FormatName)
	f := cmd.Flags()
	for name, text := range map[string]string{
		"setup":   "shell command to run first, as root, such as 'apt-get update && apt-get install -y libpq-dev'",
		"install": "shell command that installs dependencies (default: detected from the lock file)",
		"build":   "shell command that builds (default: the package manager's)",
		"test":    "shell command that tests (default: the package manager's)",
	} {
		values[name] = f.String(name, "", text)
	}
	f.StringVar(&req.Branch, "branch", "", "branch (default: the default branch of the repository)")
	parts = partFlags(f, &req)
	f.BoolVar(&req.Root, "root", false, "run the commands as root, not as the image's user")
	f.Var(&limit, "limit", "time limit of a build, such as 20m (default: 10m)")
	f.BoolVarP(&detach, "detach", "d", false, "do not wait for the image")
	f.BoolVar(&later, "later", false, "do not build the image now")
	box.Add(cmd)
	f.Lookup("name").Usage = "name of the repository (default: owner/name of the address)"
	f.Lookup("image").Usage = "base image (default: agent)"
	return cmd
}

// partFlags adds the flags that select parts of a repository. The returned function copies those that were given to
// req.
func partFlags(f *pflag.FlagSet, req *api.RepoRequest) func() {
	submodules := f.Bool("submodules", false, "fetch submodules (https, http, ssh and git only)")
	lfs := f.Bool("lfs", false, "fetch large files (git-lfs)")
	groups := f.StringArray("group", nil, "dependency group, extra or requirements file of Python projects to "+
		"install, "+
		"such as docs; repeatable, '' for none (default: dev and test)")
	devContainer := f.String("devcontainer", "", "name of the dev container configuration to use, '' for none "+
		"(default: that of the whole repository, or the only one)")
	return func() {
		if f.Changed("devcontainer") {
			req.DevContainer = devContainer
		}
		if f.Changed("submodules") {
			req.Submodules = submodules
		}
		if f.Changed("lfs") {
			req.LFS = lfs
		}
		if f.Changed("group") {
			names := slices.DeleteFunc(*groups, func(name string) bool { return name == "" })
			req.Groups = &names
		}
	}
}

// showRepo shows a repository unless err is set.
func (c commands) showRepo(r api.Repo, err error) error {
	if err != nil {
		return nil
	}
	v := repos(r)
	v.JSON = r
	return c.Show(v)
}

func repos(found ...api.Repo) cli.View {
	v := cli.View{JSON: found, Header: []string{"NAME", "STATUS", "IMAGE", "COMMIT", "BEHIND", "BUILT", "CHECKED",
		"MANAGERS", "LEFT OUT", "REASON"}}
	for _, r := range found {
		var managers []string
		for _, p := range r.Projects {
			managers = append(managers, p.Manager)
		}
		var left []string
		for _, gap := range r.Left {
			if !slices.Contains(left, gap.What) {
				left = append(left, gap.What)
			}
		}
		v.Names = append(v.Names, r.Name)
		v.Rows = append(v.Rows, []string{r.Name, r.Status, cli.OrDash(r.Image),
			cli.OrDash(r.Commit[:min(len(r.Commit), 10)]), strconv.Itoa(r.Behind), cli.Ago(r.Built), cli.Ago(r.Checked),
			cli.Joined(managers), cli.Joined(left), cli.OrDash(chat.FirstLine(r.Reason))})
	}
	return v
}

func (c commands) repoList() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use: "ls", Aliases: []string{"list"}, Short: "List repositories", Example: "  harvest repo ls -o json",
		Args: cli.Args(0, 0, "no arguments"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, _ []string) error {
			found, err := server.Repos(ctx)
			if err != nil {
				return err
			}
			return c.Show(repos(found...))
		}),
	}, cli.FormatTable)
}

func (c commands) repoGet() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use: "get REPO", Short: "Show a repository", Example: "  harvest repo get owner/name",
		Args: cli.Args(1, 1, "one repository"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			found, err := server.Repo(ctx, args[0])
			return errors.Join(err, c.showRepo(found, err))
		}),
	}, cli.FormatJSON)
}

func (c commands) repoBuild() *cobra.Command {
	return c.startBuild("build REPO…", "Build the image of a repository from scratch",
		`Build the image from scratch. If the build fails, the last good image stays.`,
		"  harvest repo build owner/name", (*client.Client).BuildRepo)
}

func (c commands) repoRefresh() *cobra.Command {
	return c.startBuild("refresh [REPO…]", "Update the images of repositories",
		`Update images with as little work as possible:

  neither commit nor recipe changed   nothing
  same dependencies                   build on top of the last image
  otherwise                           build from scratch

Without REPO, update all repositories.`, "  harvest repo refresh owner/name", (*client.Client).RefreshRepo)
}

func (c commands) startBuild(use, short, long, example string, start func(*client.Client, context.Context,
	string) (api.RepoBuilt, error)) *cobra.Command {
	detach, least := false, 1
	if strings.Contains(use, "[") {
		least = 0
	}
	cmd := &cobra.Command{
		Use: use, Short: short, Long: long, Example: example, Args: cli.Args(least, -1, "repositories"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if len(args) == 0 {
				all, err := server.Repos(ctx)
				if err != nil {
					return err
				}
				for _, r := range all {
					args = append(args, r.Name)
				}
			}
			var failed error
			for _, ref := range args {
				begun, err := start(server, ctx, ref)
				if err == nil && !detach {
					err = c.followBuild(ctx, server, begun)
				}
				if err != nil && len(args) > 1 {
					c.Notef("%s: %s", ref, errors.Message(err))
				}
				if failed == nil {
					failed = err
				}
			}
			return failed
		}),
	}
	cmd.Flags().BoolVarP(&detach, "detach", "d", false, "do not wait for the end")
	return cmd
}

// followBuild shows a build and returns its failure as an error.
func (c commands) followBuild(ctx context.Context, server *client.Client, begun api.RepoBuilt) error {
	ended, err := server.FollowRepoBuild(ctx, begun, c.buildEvent)
	if err != nil {
		if ctx.Err() != nil {
			c.Hint("the build continues: harvest repo log %s", begun.RepoID)
		}
		return err
	}
	return c.buildResult(ended)
}

// buildEvent shows an event of a build.
func (c commands) buildEvent(kind string, e api.RepoEvent) {
	if c.Quiet {
		return
	}
	switch kind {
	case api.EventBuildStage:
		title := e.Stage
		if e.Command != "" {
			title += ": " + chat.FirstLine(e.Command)
		}
		fmt.Fprintf(c.Err, "== %s\n", title)
	case api.EventBuildLog:
		fmt.Fprint(c.Err, chat.Plain(e.Text))
	}
}

// buildResult is the error of a failed build.
func (c commands) buildResult(b api.RepoBuilt) error {
	took := time.Duration(b.Seconds * float64(time.Second)).Round(time.Millisecond)
	switch {
	case b.Mode == "unchanged":
		c.Hint("unchanged since commit %.10s (%s)", b.Commit, took)
		return nil
	case b.Success:
		c.Hint("image %s of commit %.10s, %s, in %s", b.Image, b.Commit, b.Mode, took)
		for _, gap := range b.Left {
			c.Hint("left out: %s", chat.FirstLine(gap.Why))
		}
		return nil
	}
	kind := errors.Kind(cli.OrElse(b.Kind, string(errors.Unavailable)))
	err := errors.Newf(kind, "%s", cli.OrElse(b.Error, b.Status))
	if kind == errors.Invalid { // the repository is wrong, not the use of this command
		err = errors.Exit(err, 1)
	}
	if b.Stage != "" {
		err = errors.Stage(err, b.Stage)
	}
	if b.Remedy != "" {
		err = errors.Remedy(err, "%s", b.Remedy)
	}
	return err
}

func (c commands) repoLog() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "log REPO [BUILD]",
		Short:   "Print the log of a build, and follow it while the build runs",
		Long:    "Print the log of a build, by default the newest one. Logs are kept for 30 days.",
		Example: "  harvest repo log owner/name",
		Args:    cli.Args(1, 2, "a repository and optionally a build"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			builds, err := server.RepoBuilds(ctx, args[0])
			if err != nil {
				return err
			}
			for _, b := range builds {
				if len(args) == 1 || b.ID == args[1] {
					c.Err = c.Out // the log is the result
					ended, err := server.FollowRepoBuild(ctx, b, c.buildEvent)
					if err == nil && ended.Error != "" {
						fmt.Fprintf(c.Out, "%s: %s\n", cli.OrElse(ended.Stage, ended.Status), ended.Error)
					}
					return cli.Left(ctx, err, "the build", "harvest repo log "+args[0])
				}
			}
			return errors.Remedy(errors.Newf(errors.NotFound, "no such build"), "see: harvest repo history %s", args[0])
		}),
	}
	cli.AddFollow(cmd)
	return cmd
}

func (c commands) repoHistory() *cobra.Command {
	return c.WithOutput(&cobra.Command{
		Use: "history REPO", Short: "List the builds of a repository's image, newest first",
		Example: "  harvest repo history owner/name -o json", Args: cli.Args(1, 1, "one repository"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			builds, err := server.RepoBuilds(ctx, args[0])
			if err != nil {
				return err
			}
			v := cli.View{JSON: builds, Header: []string{"BUILD", "STARTED", "MODE", "STATUS", "TOOK", "COMMIT",
				"IMAGE", "REASON"}}
			for _, b := range builds {
				reason := b.Error
				if b.Stage != "" {
					reason = b.Stage + ": " + reason
				}
				v.Names = append(v.Names, b.ID)
				v.Rows = append(v.Rows, []string{b.ID, cli.Ago(b.Started), cli.OrDash(b.Mode), b.Status,
					time.Duration(b.Seconds * float64(time.Second)).Round(time.Millisecond).String(),
					cli.OrDash(b.Commit[:min(len(b.Commit), 10)]), cli.OrDash(b.Image),
					cli.OrDash(chat.FirstLine(reason))})
			}
			return c.Show(v)
		}),
	}, cli.FormatTable)
}

func (c commands) repoRemove() *cobra.Command {
	return &cobra.Command{
		Use: "rm REPO…", Short: "Unregister repositories and remove their images", Aliases: []string{"remove"},
		Long:    "Unregister repositories and remove their unused images. Running sessions continue.",
		Example: "  harvest repo rm owner/name", Args: cli.Args(1, -1, "repositories"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			for _, ref := range args {
				if err := server.RemoveRepo(ctx, ref); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
