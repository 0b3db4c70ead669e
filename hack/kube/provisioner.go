package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"
)

const (
	provisionerName      = "firn.dev/local"
	selectedNode         = "volume.kubernetes.io/selected-node"
	storageProvisioner   = "volume.kubernetes.io/storage-provisioner"
	provisionedBy        = "pv.kubernetes.io/provisioned-by"
	provisionerFinalizer = "firn.dev/local-directory"
)

// provisioner creates a directory and a `local` PersistentVolume for every claim that the scheduler has placed on this node, and deletes
// both after the claim. `local` volumes support fsGroup, and hostPath volumes do not.
type provisioner struct {
	client    kubernetes.Interface
	directory string
	node      string
	claims    corelisters.PersistentVolumeClaimLister
	volumes   corelisters.PersistentVolumeLister
	classes   storagelisters.StorageClassLister
	queue     workqueue.TypedRateLimitingInterface[key]
}

// key names an object to reconcile: a claim (with namespace) or a volume (without).
type key struct{ namespace, name string }

func newProvisionerCommand() *cobra.Command {
	var directory, node string
	command := newClientCommand("local-provisioner", "Provision local PersistentVolumes on one node", func(ctx context.Context, client kubernetes.Interface) error {
		return runProvisioner(ctx, client, directory, node)
	})
	command.Flags().StringVar(&directory, "directory", "", "where the directories of the volumes are made")
	command.Flags().StringVar(&node, "node", "", "the node whose claims are served")
	return command
}

func runProvisioner(ctx context.Context, client kubernetes.Interface, directory, node string) error {
	factory := informers.NewSharedInformerFactory(client, 10*time.Minute)
	claims := factory.Core().V1().PersistentVolumeClaims()
	volumes := factory.Core().V1().PersistentVolumes()
	p := &provisioner{
		client: client, directory: directory, node: node,
		claims: claims.Lister(), volumes: volumes.Lister(), classes: factory.Storage().V1().StorageClasses().Lister(),
		queue: workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[key](100*time.Millisecond, 30*time.Second)),
	}
	enqueue := func(object any) {
		if meta, ok := object.(metav1.Object); ok {
			p.queue.Add(key{meta.GetNamespace(), meta.GetName()})
		}
	}
	handler := cache.ResourceEventHandlerFuncs{AddFunc: enqueue, UpdateFunc: func(_, object any) { enqueue(object) }}
	for _, informer := range []cache.SharedIndexInformer{claims.Informer(), volumes.Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			return err
		}
	}
	factory.Start(ctx.Done())
	factory.WaitForCacheSync(ctx.Done())
	for {
		item, stopped := p.queue.Get()
		if stopped {
			return nil
		}
		if err := p.reconcile(ctx, item); err != nil {
			klog.ErrorS(err, "Reconcile failed", "namespace", item.namespace, "name", item.name)
			p.queue.AddRateLimited(item)
		} else {
			p.queue.Forget(item)
		}
		p.queue.Done(item)
	}
}

func (p *provisioner) reconcile(ctx context.Context, item key) error {
	if item.namespace == "" {
		volume, err := p.volumes.Get(item.name)
		if err != nil {
			return ignoreMissing(err)
		}
		return p.release(ctx, volume)
	}
	claim, err := p.claims.PersistentVolumeClaims(item.namespace).Get(item.name)
	if err != nil {
		return ignoreMissing(err)
	}
	return p.provision(ctx, claim)
}

// provision creates the volume of a claim. A repeated call finds the volume by its name, which contains the claim's uid.
func (p *provisioner) provision(ctx context.Context, claim *corev1.PersistentVolumeClaim) error {
	if claim.Spec.VolumeName != "" || claim.Annotations[storageProvisioner] != provisionerName || claim.Annotations[selectedNode] != p.node {
		return nil
	}
	class, err := p.classes.Get(*claim.Spec.StorageClassName)
	if err != nil {
		return err
	}
	name := "pvc-" + string(claim.UID)
	path := filepath.Join(p.directory, name)
	if err := os.MkdirAll(path, 0o777); err != nil {
		return err
	}
	// Not limited by the umask, because a pod without fsGroup may run as any user.
	if err := os.Chmod(path, 0o777); err != nil {
		return err
	}
	mode := corev1.PersistentVolumeFilesystem
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        name,
			Annotations: map[string]string{provisionedBy: provisionerName},
			Finalizers:  []string{provisionerFinalizer},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: claim.Spec.Resources.Requests[corev1.ResourceStorage]},
			AccessModes: claim.Spec.AccessModes,
			ClaimRef: &corev1.ObjectReference{
				APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			},
			PersistentVolumeReclaimPolicy: *class.ReclaimPolicy,
			StorageClassName:              class.Name,
			VolumeMode:                    &mode,
			PersistentVolumeSource:        corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: path}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{p.node},
				}},
			}}}},
		},
	}
	_, err = p.client.CoreV1().PersistentVolumes().Create(ctx, volume, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// release deletes a volume without a claim if its reclaim policy says Delete, and the directory of every volume of this provisioner that is being deleted.
func (p *provisioner) release(ctx context.Context, volume *corev1.PersistentVolume) error {
	if volume.Annotations[provisionedBy] != provisionerName || volume.Spec.Local == nil {
		return nil
	}
	reclaimed := volume.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
	if volume.DeletionTimestamp == nil {
		if volume.Status.Phase == corev1.VolumeReleased && reclaimed {
			return ignoreMissing(p.client.CoreV1().PersistentVolumes().Delete(ctx, volume.Name, metav1.DeleteOptions{}))
		}
		return nil
	}
	// The PV controller's own finalizer means that a claim still uses the volume.
	kept := []string{}
	for _, finalizer := range volume.Finalizers {
		if finalizer != provisionerFinalizer {
			kept = append(kept, finalizer)
		}
	}
	if len(kept) == len(volume.Finalizers) || (len(kept) > 0 && volume.Status.Phase == corev1.VolumeBound) {
		return nil
	}
	if reclaimed {
		if filepath.Dir(volume.Spec.Local.Path) != filepath.Clean(p.directory) {
			return fmt.Errorf("volume %s points at %s, which is not below %s: left alone", volume.Name, volume.Spec.Local.Path, p.directory)
		}
		if err := os.RemoveAll(volume.Spec.Local.Path); err != nil {
			return err
		}
	}
	changed := volume.DeepCopy()
	changed.Finalizers = kept
	_, err := p.client.CoreV1().PersistentVolumes().Update(ctx, changed, metav1.UpdateOptions{})
	return ignoreMissing(err)
}

func ignoreMissing(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
