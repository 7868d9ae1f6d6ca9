package secrets

import (
	"bufio"
	"context"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
)

// Logins returns the commands for logins.
func Logins(base *cli.CLI) []*cobra.Command {
	c := commands{base}
	return []*cobra.Command{c.login(), c.logout()}
}

// loginFlags are the flags of harvest login.
type loginFlags struct{ client, token, file string }

func (c commands) login() *cobra.Command {
	var flags loginFlags
	cmd := c.WithOutput(&cobra.Command{
		Use:   "login [PROVIDER]",
		Short: "Log in to Claude, Codex, Gemini or GitHub, for agents in sandboxes",
		Long: `Give the server a login to a provider: claude, codex, gemini or github. The server alone owns it, and
renews its access token. Sandboxes with --secret PROVIDER have a placeholder, which the server replaces in
requests to the provider's hosts. Agent sessions use the login to claude if there is no API key.

GitHub shows a page on which you type a code. The others show a code that you paste here. If the browser
ends at an address of localhost that cannot be opened, paste that address.

--token - reads a token from standard input, such as that of "claude setup-token". --file takes over the
login of the provider's own program: ~/.claude/.credentials.json, ~/.codex/auth.json or
~/.gemini/oauth_creds.json. That program then loses its login when the server renews it.

The login goes to the client of the provider's own program (github: that of gh), unless --client-id or
the configuration names another one. Without a provider, the command lists the logins.`,
		Example: `  harvest login claude
  claude setup-token | tail -n 1 | harvest login claude --token -
  harvest login codex --file ~/.codex/auth.json
  harvest run --secret github -- gh repo list
  harvest login`,
		Args: cli.Args(0, 1, "at most one provider"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if len(args) == 0 {
				if flags != (loginFlags{}) {
					return errors.Remedy(errors.Newf(errors.Invalid, "no provider is named"),
						"name one, such as github")
				}
				found, err := server.Logins(ctx)
				if err != nil {
					return err
				}
				return c.Show(cli.Table(found, loginHeader, loginRow))
			}
			made, err := c.logIn(ctx, server, args[0], flags)
			if err != nil {
				return err
			}
			v := cli.Table([]api.Login{made}, loginHeader, loginRow)
			v.JSON = made
			return c.Show(v)
		}),
	}, cli.FormatTable)
	cmd.Flags().StringVar(&flags.client, "client-id", "",
		"ID of a client at the provider (default: the server's choice)")
	cmd.Flags().StringVar(&flags.token, "token", "", "- to read a token from standard input")
	cmd.Flags().StringVar(&flags.file, "file", "", "file of credentials of the provider's own program, to take over")
	cmd.MarkFlagsMutuallyExclusive("client-id", "token", "file")
	return cmd
}

var loginHeader = []string{"PROVIDER", "STATE", "RENEWED", "TOKEN ENDS", "USED", "FOR"}

func loginRow(l api.Login) (name string, cells []string) {
	ends := "-"
	if !l.Expires.IsZero() {
		ends = l.Expires.Local().Format("2006-01-02 15:04")
	}
	return l.Provider, []string{l.Provider, l.State, cli.Ago(l.Renewed), ends, cli.Ago(l.LastUsed), l.Title}
}

// logIn logs in to a provider.
func (c commands) logIn(ctx context.Context, server *client.Client, provider string, flags loginFlags) (api.Login,
	error) {
	token, err := c.token(flags)
	if err != nil {
		return api.Login{}, err
	}
	attempt, err := server.BeginLogin(ctx, provider, api.LoginRequest{Client: flags.client, Token: token})
	if err != nil {
		return api.Login{}, err
	}
	if attempt.URL == "" {
		if flags.file != "" && attempt.Login.Renews {
			c.Notef("the server owns this login now: delete %s, whose login ends when the server renews it",
				flags.file)
		}
		return attempt.Login, nil
	}
	if attempt.UserCode != "" {
		c.Warnf("open %s and type the code %s", attempt.URL, attempt.UserCode)
		c.Notef("waiting for you to allow the access…")
		return server.FinishLogin(ctx, provider, "")
	}
	c.Warnf("open this address, allow the access, and paste the code or the address that you get:\n\n%s\n",
		attempt.URL)
	code, err := line(ctx, c.In)
	if err != nil {
		return api.Login{}, err
	}
	return server.FinishLogin(ctx, provider, code)
}

// maxToken is the maximum size of a token or a file, in bytes.
const maxToken = 64 << 10

// token returns the token that the flags name, or "".
func (c commands) token(flags loginFlags) (string, error) {
	in := c.In
	switch {
	case flags.token != "" && flags.token != "-":
		return "", errors.Remedy(errors.Newf(errors.Invalid,
			"--token takes no token: others can read the arguments of commands"),
			"write --token - and give the token on standard input")
	case flags.file != "":
		f, err := os.Open(flags.file)
		if err != nil {
			return "", errors.Remedy(errors.Explainf(err, errors.Invalid, "cannot read the file %s", flags.file),
				"give --file a readable file")
		}
		defer f.Close()
		in = f
	case flags.token == "":
		return "", nil
	}
	text, err := io.ReadAll(io.LimitReader(in, maxToken+1))
	token := strings.TrimSpace(string(text))
	if err == nil && (token == "" || len(text) > maxToken) {
		err = errors.Remedy(errors.Newf(errors.Invalid, "there is no token"),
			"give one token, or a file of credentials")
	}
	return token, err
}

// line reads a line, or ends with ctx.
func line(ctx context.Context, in io.Reader) (string, error) {
	type result struct {
		text string
		err  error
	}
	read := make(chan result, 1)
	go func() {
		text, err := bufio.NewReader(io.LimitReader(in, maxToken)).ReadString('\n')
		read <- result{strings.TrimSpace(text), err}
	}()
	select {
	case <-ctx.Done():
		return "", errors.Explainf(context.Cause(ctx), errors.Canceled, "the login was canceled")
	case r := <-read:
		if r.text == "" {
			return "", errors.Remedy(errors.Newf(errors.Invalid, "no code was given"),
				"paste the code after the address")
		}
		return r.text, nil
	}
}

func (c commands) logout() *cobra.Command {
	return &cobra.Command{
		Use:   "logout PROVIDER",
		Short: "Delete a login, and revoke it at the provider",
		Long: `Delete a login from the server, and revoke it at the provider if that has a way to do so. Requests of
sandboxes with its placeholder are refused from then on.`,
		Example: "  harvest logout github",
		Args:    cli.Args(1, 1, "a provider"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			done, err := server.Logout(ctx, args[0])
			if err != nil {
				return err
			}
			if !done.Revoked {
				c.Warnf("the login is deleted here, but %s: %s", done.Reason, done.Remedy)
			}
			return nil
		}),
	}
}
