import { curvePanel } from "./_curves.ts";

export default curvePanel({
  id: "mean_gsnr",
  title: "Mean gradient signal-to-noise",
  group: "gradients",
  order: 70,
  height: 140,
  shown: [{ name: "MeanGSNR", label: "mean GSNR" }],
  ylabel: "GSNR",
  ylog: true,
  help: [
    "For each parameter, the squared mean gradient over its variance across samples, averaged over all parameters.",
    "High values early on mean that the samples agree; they promise good generalisation. It falls as training fits the data.",
  ],
});
