// Package github implements the part of GitHub's REST API that sessions need: tokens of Apps, and pull requests.
// github.com and GitHub Enterprise have the same API at different addresses: https://docs.github.com/en/rest.
package github

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
)

const (
	version   = "2022-11-28" // API version
	maxAnswer = 4 << 20      // bytes
)

// Timeout is the time limit of one request.
const Timeout = 30 * time.Second

// API returns the address of the REST API for the GitHub server at host: github.com's, or an Enterprise server's.
func API(host string) string {
	if strings.EqualFold(host, "github.com") {
		return "https://api.github.com"
	}
	return "https://" + host + "/api/v3"
}

// Client calls the API of one GitHub server as one user or App. Its errors are for clients and contain no
// credentials.
type Client struct {
	API   string        // as returned by the function API
	Token config.Secret // a user's, an installation's, or an App's JWT
	HTTP  *http.Client  // nil means a client that reaches the internet only, with Timeout
}

// call sends a request, with in as JSON unless it is nil, and decodes the answer into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		text, err := json.Marshal(in)
		if err != nil {
			return errors.Wrapf(err, "encode a request to GitHub")
		}
		body = bytes.NewReader(text)
	}
	// The address contains GITHUB_HOST, which must not be able to redirect the request.
	base, err := url.Parse(c.API)
	if err == nil && (base.Scheme != "https" && base.Scheme != "http" || base.Hostname() == "" || base.User != nil ||
		base.RawQuery != "" || base.ForceQuery || strings.Contains(c.API, "#")) {
		err = errors.Errorf("an address with a user, a query or a fragment")
	}
	var req *http.Request
	if err == nil {
		req, err = http.NewRequestWithContext(ctx, method, strings.TrimRight(c.API, "/")+path, body)
	}
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "invalid address of GitHub's API"),
			"set GITHUB_API_URL to one such as https://git.example.org/api/v3, or correct GITHUB_HOST")
	}
	req.Header.Set("Accept", "application/vnd.github+json")
	req.Header.Set("X-GitHub-Api-Version", version)
	req.Header.Set("User-Agent", "harvest")
	req.Header.Set("Authorization", "Bearer "+c.Token.Reveal())
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	doer := c.HTTP
	if doer == nil {
		doer = netguard.Rules{}.Client(Timeout)
	}
	resp, err := doer.Do(req)
	if denied := netguard.Refusal(err); denied != nil {
		return denied
	}
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "GitHub's API at %s cannot be reached",
			req.URL.Host), "try again; with an Enterprise, check GITHUB_API_URL")
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return errors.Explainf(err, errors.Unavailable, "GitHub's answer broke off")
	}
	if resp.StatusCode/100 != 2 {
		return refusal(resp, text)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(text, out); err != nil {
		return errors.Explainf(err, errors.Unavailable, "GitHub's answer is not understood")
	}
	return nil
}

// Revoke revokes an installation's token.
func (c *Client) Revoke(ctx context.Context) error {
	return c.call(ctx, http.MethodDelete, "/installation/token", nil, nil)
}

// problem is GitHub's error response.
type problem struct {
	Message string `json:"message"`
	Errors  []struct {
		Message string `json:"message"`
		Field   string `json:"field"`
		Code    string `json:"code"`
	} `json:"errors"`
}

// refusal returns the error for a response without success.
func refusal(resp *http.Response, text []byte) error {
	var p problem
	_ = json.Unmarshal(text, &p) // a body that is not JSON has no message
	said := p.Message
	for _, e := range p.Errors {
		if e.Message == "" {
			e.Message = strings.TrimSpace(e.Field + " " + e.Code)
		}
		said += "; " + e.Message
	}
	if said = strings.Trim(said, "; "); said == "" {
		said = resp.Status
	}
	if len(said) > 500 {
		said = strings.ToValidUTF8(said[:500], "")
	}
	limited := resp.StatusCode == http.StatusTooManyRequests || resp.StatusCode == http.StatusForbidden &&
		(resp.Header.Get("X-RateLimit-Remaining") == "0" || resp.Header.Get("Retry-After") != "")
	switch {
	case limited:
		return errors.Remedy(errors.Newf(errors.Exhausted, "GitHub refuses requests for now: %s", said),
			"wait a few minutes and try again")
	case resp.StatusCode == http.StatusUnauthorized:
		return errors.Remedy(errors.Newf(errors.Denied,
			"GitHub refused the token: it is wrong, was revoked or has expired (%s)", said),
			"make a new one and put it into the secret")
	case resp.StatusCode == http.StatusForbidden:
		return errors.Remedy(errors.Newf(errors.Denied, "GitHub does not allow it: %s", said),
			"give the token the rights to read and write contents and pull requests")
	case resp.StatusCode == http.StatusNotFound:
		return errors.Remedy(errors.Newf(errors.NotFound,
			"GitHub knows no such repository, or the token may not see it (%s)", said),
			"check the repository's address, and the permissions of the token")
	case resp.StatusCode == http.StatusUnprocessableEntity, resp.StatusCode == http.StatusConflict:
		return errors.Newf(errors.Conflict, "GitHub did not take it: %s", said)
	}
	return errors.Remedy(errors.Newf(errors.Unavailable, "GitHub answered %d: %s", resp.StatusCode, said),
		"try again later")
}

// Pull is a pull request.
type Pull struct {
	Number int    `json:"number"`
	URL    string `json:"html_url"`
	Draft  bool   `json:"draft"`
	Title  string `json:"title"`
	Body   string `json:"body"`
}

// PullRequest contains the fields of a new pull request.
type PullRequest struct {
	Title string `json:"title"`
	Body  string `json:"body"`
	Head  string `json:"head"` // branch with the changes, of the same repository
	Base  string `json:"base"` // target branch; "" means the repository's default branch
	Draft bool   `json:"draft"`
}

// FindPull returns the open pull request of a branch of the repository, such as "owner/name". Number is 0 if there is
// none.
func (c *Client) FindPull(ctx context.Context, repository, branch string) (Pull, error) {
	owner, _, _ := strings.Cut(repository, "/")
	query := url.Values{"head": {owner + ":" + branch}, "state": {"open"}}
	var open []Pull
	if err := c.call(ctx, http.MethodGet, repoPath(repository)+"/pulls?"+query.Encode(), nil, &open); err != nil ||
		len(open) == 0 {
		return Pull{}, err
	}
	return open[0], nil
}

// PullChange contains the fields of a pull request that change; those that are "" stay.
type PullChange struct {
	Title string `json:"title,omitempty"`
	Body  string `json:"body,omitempty"`
}

// UpdatePull changes a pull request.
func (c *Client) UpdatePull(ctx context.Context, repository string, number int, change PullChange) (Pull, error) {
	var made Pull
	return made, c.call(ctx, http.MethodPatch, repoPath(repository)+"/pulls/"+strconv.Itoa(number), change, &made)
}

// OpenPull opens a pull request in the repository.
func (c *Client) OpenPull(ctx context.Context, repository string, req PullRequest) (Pull, error) {
	if req.Base == "" {
		var found struct {
			Default string `json:"default_branch"`
		}
		if err := c.call(ctx, http.MethodGet, repoPath(repository), nil, &found); err != nil {
			return Pull{}, err
		}
		req.Base = found.Default
	}
	var made Pull
	err := c.call(ctx, http.MethodPost, repoPath(repository)+"/pulls", req, &made)
	if errors.KindOf(err) == errors.Conflict && req.Draft &&
		strings.Contains(strings.ToLower(errors.Message(err)), "draft") {
		err = errors.Remedy(err, "this repository has no drafts: ask for one that is ready")
	}
	return made, err
}

// repoPath returns the API path of a repository.
func repoPath(repository string) string {
	owner, name, _ := strings.Cut(repository, "/")
	return "/repos/" + url.PathEscape(owner) + "/" + url.PathEscape(name)
}

// Templates returns the paths of pull request templates in a repository, in GitHub's order of preference.
func Templates() []string {
	var all []string
	for _, dir := range []string{".github/", "", "docs/"} {
		for _, name := range []string{"pull_request_template.md", "PULL_REQUEST_TEMPLATE.md",
			"pull_request_template.txt", "PULL_REQUEST_TEMPLATE.txt", "pull_request_template",
			"PULL_REQUEST_TEMPLATE"} {
			all = append(all, dir+name)
		}
	}
	return all
}

// Installation is an App at one installation.
type Installation struct {
	API  string
	App  string        // the App's ID or client ID
	Key  config.Secret // private key, PEM as downloaded from GitHub
	ID   string        // of the installation; "" means the repository's
	HTTP *http.Client
}

// Token is a token with an expiry.
type Token struct {
	Value   config.Secret
	Expires time.Time
}

// Token returns a new token for one repository, valid for an hour. It may only write contents and pull requests.
func (i Installation) Token(ctx context.Context, repository string) (Token, error) {
	jwt, err := signJWT(i.App, i.Key, time.Now())
	if err != nil {
		return Token{}, err
	}
	c := &Client{i.API, config.Secret(jwt), i.HTTP}
	id := i.ID
	if id != "" && strings.Trim(id, "0123456789") != "" {
		return Token{}, errors.Remedy(errors.Newf(errors.Invalid, "GITHUB_APP_INSTALLATION_ID is not a number"),
			"write it as in the address of the installation's page")
	}
	if id == "" {
		var found struct {
			ID int64 `json:"id"`
		}
		if err := c.call(ctx, http.MethodGet, repoPath(repository)+"/installation", nil, &found); err != nil {
			return Token{}, errors.Remedy(errors.Explainf(err, errors.KindOf(err),
				"the GitHub App is not installed for %s: %s", repository, errors.Message(err)),
				"install it there, and check GITHUB_APP_ID and its private key")
		}
		id = strconv.FormatInt(found.ID, 10)
	}
	_, name, _ := strings.Cut(repository, "/")
	ask := map[string]any{"repositories": []string{name}, "permissions": map[string]string{"contents": "write",
		"pull_requests": "write"}}
	var made struct {
		Token   string    `json:"token"`
		Expires time.Time `json:"expires_at"`
	}
	if err := c.call(ctx, http.MethodPost, "/app/installations/"+url.PathEscape(id)+"/access_tokens", ask,
		&made); err != nil {
		return Token{}, errors.Explainf(err, errors.KindOf(err), "the GitHub App got no token for %s: %s", repository,
			errors.Message(err))
	}
	if made.Token == "" {
		return Token{}, errors.Newf(errors.Unavailable, "GitHub's answer has no token in it")
	}
	return Token{config.Secret(made.Token), made.Expires}, nil
}
