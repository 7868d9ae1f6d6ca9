package sandboxes

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

func (c commands) sandboxNetwork() *cobra.Command {
	var rules []string
	cmd := c.WithOutput(&cobra.Command{
		Use:   "network SANDBOX --network RULE…",
		Short: "Change the network policy of a running sandbox",
		Long:  "Change the network policy of a running sandbox. Connections that are no longer allowed are closed.\n\n" + networkHelp,
		Example: `  harvest sandbox network dev --network none
  harvest sandbox network dev --network allow=example.org,*.example.org:443`,
		Args: cli.Args(1, 1, "one sandbox"),
		RunE: func(cmd *cobra.Command, args []string) error {
			network, err := cli.ParseNetwork(rules)
			if err != nil {
				return err
			}
			if network.Mode == "" {
				return cli.Usage(cmd, "nothing to change: give --network")
			}
			server, err := c.Connect(cmd.Context())
			if err != nil {
				return err
			}
			defer server.Close()
			changed, err := server.SetNetwork(cmd.Context(), args[0], network)
			if err != nil {
				return err
			}
			return c.Show(oneSandbox(changed))
		},
	}, cli.FormatTable)
	cli.AddNetwork(cmd, &rules)
	return cmd
}

const networkHelp = `--network can be repeated:
  none       no connections but to the sandbox's own loopback
  default    the internet, but no loopback, private, link-local, metadata or host address
  allow=A,B  only A and B, unless default is given as well
  deny=A,B   never A or B
A name is a domain (example.org), all domains below one (*.example.org), an address or a CIDR, each
with an optional :PORT.`

// denialText describes a connection that a network policy refused, and why, on one line.
func denialText(d api.Denial) string {
	where := d.Domain
	if d.Address != "" {
		address := d.Address
		if d.Port != 0 {
			address = net.JoinHostPort(d.Address, strconv.Itoa(d.Port))
		}
		if where != "" {
			address = " (" + address + ")"
		}
		where += address
	}
	text := strings.TrimSpace(d.Protocol+" "+where) + ": " + d.Reason
	if d.Count > 1 {
		text += fmt.Sprintf(", %d times", d.Count)
	}
	return text
}

// tellDenied reports the connections that the network policy of a sandbox has refused since a time. Programs
// themselves report only that they cannot connect.
func (c commands) tellDenied(ctx context.Context, server *client.Client, id string, since time.Time) {
	if c.Quiet {
		return
	}
	sb, err := server.Sandbox(ctx, id)
	if err != nil {
		return // the command's own output is enough
	}
	told := false
	for _, d := range sb.Denials {
		if !d.Time.Before(since) {
			c.Notef("the network policy refused %s", denialText(d))
			told = true
		}
	}
	if told {
		c.Notef("--network controls outgoing connections of a sandbox: harvest run --help")
	}
}

// networkText formats n as the command line expects it.
func networkText(n api.Network) string {
	text := n.Mode
	for _, part := range []struct {
		word  string
		names []string
	}{{"allow", n.Allow}, {"deny", n.Deny}} {
		if len(part.names) > 0 {
			text += " " + part.word + "=" + strings.Join(part.names, ",")
		}
	}
	return strings.TrimPrefix(text, "allow ")
}

func (c commands) sandboxPort() *cobra.Command {
	listen, link, expires := "", false, cli.TimeFlag(0)
	cmd := &cobra.Command{
		Use:   "port SANDBOX [PORT] [--listen ADDRESS:PORT | --link]",
		Short: "Make a port of a sandbox reachable on this machine or through a link",
		Long: `Listen on this machine, and forward connections to a port of the sandbox until interrupted. The
program in the sandbox may listen on any address, including loopback. The network policy does not
matter. Without PORT, the command forwards the ports that the sandbox was created with (-p).

With --link, print a link instead. Any browser with the link reaches the port through the server,
until the link expires or harvest sandbox links revokes it. Links work on the server's own machine.
They work everywhere if ports.domain is configured.`,
		Example: `  harvest sandbox port dev 8080
  harvest sandbox port dev 5432 --listen 127.0.0.1:15432
  harvest sandbox port dev 8080 --link --expires 1h`,
		Args: cli.Args(1, 2, "a sandbox and optionally a port"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			if link && listen != "" {
				return cli.Usage(cmd, "--link and --listen exclude each other")
			}
			server, err := c.Connect(ctx)
			if err != nil {
				return err
			}
			defer server.Close()
			found, err := server.Sandbox(ctx, args[0])
			if err != nil {
				return err
			}
			if err := wantRunning(found); err != nil {
				return err
			}
			ports := found.Ports
			if len(args) == 2 {
				port, err := parsePort(args[1])
				if err != nil {
					return err
				}
				ports = []int{port}
			}
			if len(ports) == 0 {
				return cli.Usage(cmd, "the sandbox was created without ports: name a port")
			}
			if listen != "" && len(ports) > 1 {
				return cli.Usage(cmd, "--listen needs a PORT")
			}
			if link {
				return c.linkPorts(ctx, server, found, ports, expires.Seconds())
			}
			var forwards []forward
			for _, port := range ports {
				forwards = append(forwards, forward{address: listen, port: port})
			}
			opened, err := listenAll(forwards)
			if err != nil {
				return err
			}
			for _, f := range opened {
				fmt.Fprintln(c.Out, f.listener.Addr())
				if text := portText(found, f.port); text != strconv.Itoa(f.port) {
					c.Notef("%s leads to port %s", f.listener.Addr(), text)
				}
			}
			c.passOn(ctx, server, found.ID, opened)
			return nil
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "",
		"local address (default: the same port on 127.0.0.1, or a free one if it is in use)")
	cmd.Flags().BoolVar(&link, "link", false, "print a link to the port, and do not listen")
	cmd.Flags().Var(&expires, "expires", "lifetime of the link, up to 720h (default: 24h)")
	return cmd
}

// wantRunning returns Gone if a sandbox has ended, and Conflict if it is not running for another reason. A connection
// wakes a suspended one.
func wantRunning(s api.Sandbox) error {
	if s.Status == "running" || s.Status == "suspended" {
		return nil
	}
	why := ""
	if s.Reason != "" {
		why = " (" + s.Reason + ")"
	}
	if s.Status == "terminated" || s.Status == "failed" {
		err := errors.Newf(errors.Gone, "sandbox %s is %s%s", s.ID, s.Status, why)
		return errors.Remedy(err, "create a new sandbox; for details of this one: harvest sandbox get %s", s.ID)
	}
	err := errors.Newf(errors.Conflict, "sandbox %s is %s%s", s.ID, s.Status, why)
	return errors.Remedy(err, "wait until it is running")
}

// portText shows a port with its label and its protocol, if it has these.
func portText(s api.Sandbox, port int) string {
	text := strconv.Itoa(port)
	for _, d := range s.PortDetails {
		if about := strings.Trim(chat.Plain(d.Label)+", "+d.Protocol, ", "); d.Port == port && about != "" {
			text += " (" + about + ")"
		}
	}
	return text
}

// linkPorts prints a link to each port.
func (c commands) linkPorts(ctx context.Context, server *client.Client, sandbox api.Sandbox, ports []int,
	expires float64) error {
	for _, port := range ports {
		made, err := server.CreatePortLink(ctx, sandbox.ID, api.PortLinkRequest{Port: port, ExpiresIn: expires})
		if err != nil {
			return err
		}
		fmt.Fprintln(c.Out, made.URL)
		c.Notef("the link %s leads to port %s until %s", made.ID, portText(sandbox, port),
			made.Expires.Local().Format(time.DateTime))
	}
	return nil
}

func (c commands) sandboxLinks() *cobra.Command {
	var revoke []string
	cmd := c.WithOutput(&cobra.Command{
		Use:   "links SANDBOX [--revoke LINK…]",
		Short: "List or revoke links to a sandbox's ports",
		Long: `List the valid links to a sandbox's ports. A revoked link stops working at once, also in browsers that
have opened it.`,
		Example: `  harvest sandbox links dev
  harvest sandbox links dev --revoke lnk_01jd…`,
		Args: cli.Args(1, 1, "one sandbox"),
		RunE: c.WithServer(func(ctx context.Context, server *client.Client, args []string) error {
			if len(revoke) > 0 {
				return cli.Each(revoke, "revoked", func(id string) error {
					return server.RevokePortLink(ctx,
						args[0], id)
				})
			}
			found, err := server.PortLinks(ctx, args[0])
			if err != nil {
				return err
			}
			v := cli.View{JSON: found, Header: []string{"ID", "PORT", "CREATED", "EXPIRES", "USED"}}
			for _, l := range found {
				v.Names = append(v.Names, l.ID)
				v.Rows = append(v.Rows, []string{l.ID, strconv.Itoa(l.Port), cli.Ago(l.Created), cli.Until(l.Expires),
					cli.Ago(l.LastUsed)})
			}
			return c.Show(v)
		}),
	}, cli.FormatTable)
	cmd.Flags().StringArrayVar(&revoke, "revoke", nil, "link to revoke, repeatable")
	return cmd
}

func addPorts(cmd *cobra.Command, ports *[]string, what string) {
	cmd.Flags().StringArrayVarP(ports, "port", "p", nil, what)
}

// forward is a port of a sandbox and its local address.
type forward struct {
	address  string // "" for a free port on the loopback interface
	port     int
	listener net.Listener // nil until listenAll
}

// parseForwards parses [LOCAL:]PORT.
func parseForwards(texts []string) ([]forward, error) {
	var all []forward
	for _, text := range texts {
		f := forward{}
		local, inside, has := strings.Cut(text, ":")
		if !has {
			inside = local
		} else if n, err := parsePort(local); err != nil {
			return nil, err
		} else {
			f.address = net.JoinHostPort("127.0.0.1", strconv.Itoa(n))
		}
		var err error
		if f.port, err = parsePort(inside); err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(other forward) bool { return other.port == f.port }) {
			return nil, errors.Newf(errors.Invalid, "port %d: given twice", f.port)
		}
		all = append(all, f)
	}
	return all, nil
}

func parsePort(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > 65535 {
		return 0, errors.Remedy(errors.Newf(errors.Invalid, "invalid port %.40q", text),
			"give a number from 1 to 65535")
	}
	return n, nil
}

func portsOf(forwards []forward) []int {
	var ports []int
	for _, f := range forwards {
		ports = append(ports, f.port)
	}
	return ports
}

// listenAll listens for all forwards, or for none.
func listenAll(forwards []forward) ([]forward, error) {
	opened := slices.Clone(forwards)
	for i, f := range opened {
		var err error
		if f.address != "" {
			f.listener, err = net.Listen("tcp", f.address)
		} else if f.listener, err = net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(f.port))); err != nil {
			f.listener, err = net.Listen("tcp", "127.0.0.1:0")
		}
		if err != nil {
			closeAll(opened[:i])
			err = errors.Explainf(err, errors.Invalid, "cannot listen on %.100s: %v", f.address, err)
			return nil, errors.Remedy(err, "choose a free address, such as 127.0.0.1:0")
		}
		opened[i] = f
	}
	return opened, nil
}

func closeAll(opened []forward) {
	for _, f := range opened {
		_ = f.listener.Close()
	}
}

// passOn forwards connections until ctx ends, and then closes the listeners.
func (c commands) passOn(ctx context.Context, server *client.Client, sandbox string, opened []forward) {
	var all sync.WaitGroup
	for _, f := range opened {
		all.Go(func() {
			defer context.AfterFunc(ctx, func() { _ = f.listener.Close() })()
			for {
				local, err := f.listener.Accept()
				if err != nil {
					_ = f.listener.Close()
					return
				}
				all.Go(func() {
					inside, err := server.Dial(ctx, sandbox, f.port)
					if err != nil {
						_ = local.Close()
						if ctx.Err() == nil {
							c.Notef("port %d: %s", f.port, errors.Message(err))
						}
						return
					}
					defer context.AfterFunc(ctx, func() {
						_ = local.Close()
						_ = inside.Close()
					})()
					bytestream.Join(local, inside)
				})
			}
		})
	}
	all.Wait()
}
