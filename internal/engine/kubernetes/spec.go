package kubernetes

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
)

// The labels and annotations of pods. A label has at most 63 characters, so that the exact IDs are annotations.
const (
	labelServer  = "harvest/server" // the installation of Harvest that made the pod
	labelSandbox = "harvest/sandbox"
	labelAccount = "harvest/account"
	noteSandbox  = "harvest/sandbox-id"
	noteImage    = "harvest/image"
	noteVolumes  = "harvest/volumes"
)

const (
	containerName = "sandbox"
	dataDir       = "/data"
	cacheDir      = "/images"
	// memoryReserve is for the agent, the keeper and gVisor itself, beyond the memory of the sandbox. The keeper ends
	// the sandbox at its limit, before the kernel ends the pod at its own.
	memoryReserve = 256 << 20
	// diskReserve is for the files of images, which count for the pod.
	diskReserve = 4 << 30
	// endSeconds is how long the pod's first process may take to end, when the server has ended the sandbox.
	endSeconds = 5
)

// Pod are the properties of pods.
type Pod struct {
	Image          string // of the pod: make image
	PullPolicy     string // "Always", "IfNotPresent" or "Never"; "" for Kubernetes' default
	PullSecrets    []string
	ServiceAccount string // without rights, because the pod gets no token; "" for the namespace's default
	RuntimeClass   string
	PriorityClass  string
	NodeSelector   map[string]string
	// Tolerations are taints of nodes on which pods may run, as kubectl taint writes them: KEY, KEY=VALUE, KEY:EFFECT
	// or KEY=VALUE:EFFECT.
	Tolerations   []string
	UserNamespace bool // hostUsers: false
	// CPU and Memory are what a pod requests of its node, in cores and bytes. The sandbox's limits are the pod's
	// limits. 0 means the limits.
	CPU    float64
	Memory int64
	// Cache is a directory of the node in which its pods share files of images. "" means that each pod has its own. A
	// sandbox that breaks out of gVisor could change these files.
	Cache string

	// Hosts are addresses of nodes that Kubernetes does not know, such as those in front of a cluster. Sandboxes reach
	// them, as the addresses of their own node, only by a rule for the exact address.
	Hosts []netip.Addr

	// Grace is how long an evicted pod may take until its sandbox is carried over to another pod. With 0, the sandbox
	// ends with the pod.
	Grace time.Duration

	NoSetuid    bool
	OutputBytes int64 // kept output of each command; 0 for the default
}

// newName returns a new name for a pod.
func newName() string { return "harvest-" + strings.ToLower(ulid.Make().String()) }

// describe returns the description of a new pod. id and account are "" for a warm one.
func (e *Engine) describe(name, id, account string, limits engine.Limits) (*corev1.Pod, error) {
	o := e.opts.Pod
	config, err := json.Marshal(pod.Config{Limits: limits, NoSetuid: o.NoSetuid, Hosts: o.Hosts,
		OutputBytes: o.OutputBytes, Grace: o.Grace})
	if err != nil {
		return nil, errors.Wrapf(err, "describe a pod")
	}
	no, root, grace := false, int64(0), int64(endSeconds)
	if o.Grace > 0 {
		grace += int64(o.Grace.Seconds())
	}
	spec := corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, AutomountServiceAccountToken: &no, EnableServiceLinks: &no,
		ServiceAccountName: o.ServiceAccount, PriorityClassName: o.PriorityClass, NodeSelector: o.NodeSelector,
		Tolerations: tolerations(o.Tolerations), TerminationGracePeriodSeconds: &grace,
		Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
			EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		Containers: []corev1.Container{{Name: containerName, Image: o.Image,
			ImagePullPolicy: corev1.PullPolicy(o.PullPolicy),
			Args:            []string{"-data", dataDir, "-node", "$(NODE_ADDRESSES)", "-config", string(config)},
			Env: []corev1.EnvVar{{Name: "NODE_ADDRESSES", ValueFrom: &corev1.EnvVarSource{
				FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.hostIPs"}}}},
			Stdin: true, Resources: e.resources(limits),
			Ports:        []corev1.ContainerPort{{Name: "keeper", ContainerPort: pod.Port}},
			VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: dataDir}},
			// gVisor makes namespaces and traps system calls of its own, which the usual filters refuse.
			SecurityContext: &corev1.SecurityContext{RunAsUser: &root,
				SeccompProfile:  &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined},
				AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeUnconfined}}}},
	}
	for _, secret := range o.PullSecrets {
		spec.ImagePullSecrets = append(spec.ImagePullSecrets, corev1.LocalObjectReference{Name: secret})
	}
	if o.RuntimeClass != "" {
		spec.RuntimeClassName = &o.RuntimeClass
	}
	if o.UserNamespace {
		spec.HostUsers = &no
	}
	if o.Cache != "" {
		kind := corev1.HostPathDirectoryOrCreate
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: "images", VolumeSource: corev1.VolumeSource{
			HostPath: &corev1.HostPathVolumeSource{Path: o.Cache, Type: &kind}}})
		c := &spec.Containers[0]
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "images", MountPath: cacheDir})
		c.Args = append(c.Args, "-images", cacheDir)
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: e.labels(id, account),
		Annotations: map[string]string{noteSandbox: id}}, Spec: spec}, nil
}

// tolerations are the tolerations of taints. Without an effect, all effects of a taint are meant.
func tolerations(taints []string) []corev1.Toleration {
	var all []corev1.Toleration
	for _, taint := range taints {
		rest, effect, _ := strings.Cut(taint, ":")
		key, value, valued := strings.Cut(rest, "=")
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffect(effect)}
		if valued {
			t.Operator, t.Value = corev1.TolerationOpEqual, value
		}
		all = append(all, t)
	}
	return all
}

// labelForm is the form of a label's value (https://kubernetes.io/docs/concepts/overview/working-with-objects/labels/).
var labelForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$`)

// labels are those of a pod. IDs that cannot be a label are left out.
func (e *Engine) labels(id, account string) map[string]string {
	labels := map[string]string{"app.kubernetes.io/managed-by": "harvest", labelServer: e.server}
	for name, value := range map[string]string{labelSandbox: id, labelAccount: account} {
		if labelForm.MatchString(value) {
			labels[name] = value
		}
	}
	return labels
}

// resources are the limits and requests of a pod.
func (e *Engine) resources(limits engine.Limits) corev1.ResourceRequirements {
	r := corev1.ResourceRequirements{Limits: corev1.ResourceList{}, Requests: corev1.ResourceList{}}
	const thousandths = 1000
	cores := func(n float64) resource.Quantity {
		return *resource.NewMilliQuantity(int64(n*thousandths), resource.DecimalSI)
	}
	bytes := func(n int64) resource.Quantity { return *resource.NewQuantity(n, resource.BinarySI) }
	if limits.CPU > 0 {
		r.Limits[corev1.ResourceCPU] = cores(limits.CPU)
	}
	if limits.Memory > 0 {
		r.Limits[corev1.ResourceMemory] = bytes(limits.Memory + memoryReserve)
	}
	if limits.Disk > 0 {
		r.Limits[corev1.ResourceEphemeralStorage] = bytes(limits.Disk + diskReserve)
		r.Requests[corev1.ResourceEphemeralStorage] = bytes(0)
	}
	if cpu := e.opts.Pod.CPU; cpu > 0 && (limits.CPU == 0 || cpu < limits.CPU) {
		r.Requests[corev1.ResourceCPU] = cores(cpu)
	}
	if memory := e.opts.Pod.Memory; memory > 0 && (limits.Memory == 0 || memory < limits.Memory) {
		r.Requests[corev1.ResourceMemory] = bytes(memory)
	}
	return r
}
