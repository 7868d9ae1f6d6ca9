package model

import (
	"net/http"
	"path"
	"strings"
)

// Provider is a provider of models, with an API of its own.
type Provider string

// The providers.
const (
	Anthropic Provider = "anthropic" // and gateways with its Messages API
	Bedrock   Provider = "bedrock"   // Amazon's

	OpenAI     Provider = "openai"  // and servers with a compatible API
	ChatGPT    Provider = "chatgpt" // OpenAI with the login of a subscription; programs speak to it as to OpenAI
	OpenRouter Provider = "openrouter"
	Gemini     Provider = "gemini" // Google's, with a key of AI Studio
)

// Path returns the path of a provider's API at the gateway.
func (p Provider) Path() string { return apiOf(p).prefix }

// api is the part of a provider's API that the gateway serves.
type api struct {
	provider Provider
	prefix   string // of the paths of requests to the gateway
	url      string // base URL of the provider; "" depends on the credential
	// route returns the purpose of a request; its path is without the prefix. ok is false for
	// requests that are not about models: the sandbox gets no access to other uses of the credential.
	route func(method, path string) (r route, ok bool)
	// authorize adds a credential to a request.
	authorize func(r *http.Request, c Credential)
	// refuse responds with an error in the format of the API.
	refuse func(w http.ResponseWriter, status int, kind, message string)
	// final is the status of refusals that would only repeat; 0 means that of the refusal. Codex 0.171 sends 402, 403
	// and 404 again five times, but not 400 (findings/codex-retries-refusals.sh).
	final   int
	missing string // how to store a credential
}

// route is the purpose of a request.
type route struct {
	asks   bool   // a model answers
	decode decode // reads the answer; nil if it has no usage
	model  string // in the path; "" if it is not there
	told   bool   // the answer itself says whether the model succeeded
	named  bool   // the body of the request names the model
	chat   bool   // the stream has usage only if the request asks for it
}

// decode reads an event of an answer, or a whole answer that is not a stream.
type decode func(data []byte, a *answer)

// answer is what the gateway has learned from an answer.
type answer struct {
	usage   Usage
	counted bool     // usage is known
	cost    *float64 // in USD, as the provider reports it
	tier    string   // of the service, which changes the price
	done    bool     // the model has finished
	ended   bool     // nothing follows
	failed  *Failure // of the model, after the answer began
	extra   bool     // the last event has nothing but usage
}

// fail records an error in the answer.
func (a *answer) fail(e apiError) {
	f := e.failure()
	a.failed = &f
}

// apis are the APIs of all providers. The first that serves a request counts.
var apis = []api{
	{provider: Anthropic, url: "https://api.anthropic.com", route: anthropicRoute, authorize: authorizeAnthropic,
		refuse: refuseAnthropic, missing: missingAnthropic},
	{provider: Bedrock, route: bedrockRoute, authorize: authorizeAnthropic, refuse: refuseAnthropic,
		missing: missingAnthropic},
	{provider: OpenAI, prefix: "/openai/v1", url: "https://api.openai.com/v1", route: openAIRoute,
		authorize: authorizeBearer, refuse: refuseOpenAI, final: http.StatusBadRequest, missing: missingOpenAI},
	{provider: ChatGPT, prefix: "/openai/v1", url: "https://chatgpt.com/backend-api/codex", route: openAIRoute,
		authorize: authorizeChatGPT, refuse: refuseOpenAI, final: http.StatusBadRequest, missing: missingOpenAI},
	{provider: OpenRouter, prefix: "/openrouter/v1", url: "https://openrouter.ai/api/v1", route: openAIRoute,
		authorize: authorizeBearer, refuse: refuseOpenRouter, missing: missingOpenRouter},
	{provider: Gemini, prefix: "/gemini", url: "https://generativelanguage.googleapis.com", route: geminiRoute,
		authorize: authorizeGemini, refuse: refuseGemini, missing: missingGemini},
}

// reject responds with an error that the program does not take as a reason to ask again.
func (a api) reject(w http.ResponseWriter, status int, kind, message string) {
	if a.final != 0 && status > http.StatusBadRequest && status <= http.StatusNotFound {
		status = a.final
	}
	a.refuse(w, status, kind, message)
}

// With returns the providers whose credentials serve requests for p.
func (p Provider) With() []Provider {
	if p == OpenAI {
		return []Provider{OpenAI, ChatGPT}
	}
	return []Provider{p}
}

// apiOf returns the API of a provider.
func apiOf(p Provider) api {
	for _, a := range apis {
		if a.provider == p {
			return a
		}
	}
	return apis[0]
}

// routed returns the API and the purpose of a request. ok is false if no API serves it; a is then
// the API whose errors its program understands.
func routed(r *http.Request) (a api, to route, ok bool) {
	a = apis[0]
	for _, candidate := range apis {
		rest, below := strings.CutPrefix(r.URL.Path, candidate.prefix)
		if !below {
			continue
		}
		if candidate.prefix != "" {
			a = candidate
		}
		if to, ok = candidate.route(r.Method, rest); ok && rest == path.Clean(rest) {
			return candidate, to, true
		}
	}
	return a, route{}, false
}
